#if defined(__aarch64__)
#include <arm_neon.h>
#include <cmath>
#include <cstdlib>
#include <cstring>
// Below the standard headers: what those define must run on any processor.
#pragma GCC target("arch=armv8.2-a+dotprod")
#define LANE_NEON
#define LANE neon
#include "step.h"
#endif
