#if defined(__x86_64__)
#include <immintrin.h>
#include <cmath>
#include <cstdlib>
#include <cstring>
// Below the standard headers: what those define must run on any processor.
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")
#define LANE_AVX512
#define LANE avx512
#include "step.h"
#endif
