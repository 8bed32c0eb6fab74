#if defined(__aarch64__)
#include <cmath>
#include <cstdlib>
#include <cstring>
#define LANE_NEON
#define LANE neon
#include "step.h"
#endif
