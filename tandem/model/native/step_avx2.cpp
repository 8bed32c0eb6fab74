#if defined(__x86_64__)
#include <immintrin.h>
#include <cmath>
#include <cstdlib>
#include <cstring>
// Below the standard headers: what those define must run on any processor.
#pragma GCC target("avx2,fma,f16c")
#define LANE_AVX2
#define LANE avx2
#include "step.h"
#endif
