#include <cmath>
#include <cstdlib>
#include <cstring>
#define LANE portable
#include "step.h"
