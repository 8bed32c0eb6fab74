// Vectors and inner products of one processor family. `step.h` is written in these words and compiled once for each:
// a translation unit defines LANE (the namespace) and one of LANE_AVX512, LANE_AVX2, LANE_NEON (arm64 with dot products;
// LANE_I8MM beside it where those take an unsigned factor), or none for any machine.
//
// LANES outputs, or positions, are computed side by side. Integer products are exact everywhere. Sums of floats are
// written out one by one and never reordered by the compiler (-ffp-contract=off), so a row has the same bits in any
// company; between families bits may differ.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(LANE_AVX512) || defined(LANE_AVX2)
#include <immintrin.h>
#elif defined(LANE_NEON)
#include <arm_neon.h>
#endif

namespace LANE {

#if defined(LANE_AVX512)
constexpr int LANES = 16;
#elif defined(LANE_AVX2)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

typedef float Floats __attribute__((vector_size(LANES * 4)));
typedef int32_t Ints __attribute__((vector_size(LANES * 4)));

static inline Floats load(const float* from) { Floats v; memcpy(&v, from, sizeof v); return v; }
static inline void store(float* to, Floats v) { memcpy(to, &v, sizeof v); }
static inline Ints load_bytes(const uint8_t* from) { Ints v; memcpy(&v, from, sizeof v); return v; }
static inline Floats to_floats(Ints v) { return __builtin_convertvector(v, Floats); }
static inline Ints to_ints(Floats v) { return __builtin_convertvector(v, Ints); }
static inline Floats max(Floats a, Floats b) { return a > b ? a : b; }
static inline Floats min(Floats a, Floats b) { return a < b ? a : b; }
static inline Floats round_even(Floats v) { return (v + 12582912.0f) - 12582912.0f; }  // for |v| < 2^22

static inline Floats all(float x) {
#if defined(LANE_AVX512)
    return (Floats)_mm512_set1_ps(x);
#elif defined(LANE_AVX2)
    return (Floats)_mm256_set1_ps(x);
#elif defined(LANE_NEON)
    return (Floats)vdupq_n_f32(x);
#else
    return Floats{x, x, x, x};
#endif
}

// a * b + c, rounded once where the family can.
static inline Floats mul_add(Floats a, Floats b, Floats c) {
#if defined(LANE_AVX512)
    return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(LANE_AVX2)
    return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(LANE_NEON)
    return (Floats)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

static inline float sum_of(Floats v) {  // halves onto halves: one order
    for (int width = LANES / 2; width; width /= 2)
        for (int lane = 0; lane < width; lane++) v[lane] += v[lane + width];
    return v[0];
}

static inline float max_of(Floats v) {
#if defined(LANE_AVX512)
    return _mm512_reduce_max_ps((__m512)v);
#else
    for (int width = LANES / 2; width; width /= 2)
        for (int lane = 0; lane < width; lane++) v[lane] = v[lane] > v[lane + width] ? v[lane] : v[lane + width];
    return v[0];
#endif
}

// Stores the lowest byte of each; returns the sum of what was stored.
static inline int32_t store_bytes(int8_t* to, Ints v) {
#if defined(LANE_AVX512)
    _mm_storeu_si128((__m128i*)to, _mm512_cvtepi32_epi8((__m512i)v));
    return _mm512_reduce_add_epi32((__m512i)v);
#else
    int32_t sum = 0;
    for (int lane = 0; lane < LANES; lane++) sum += to[lane] = (int8_t)v[lane];
    return sum;
#endif
}

// e^x within 3 ulp; below -87 it is e^-87, about 1.6e-38.
static inline Floats exp_of(Floats x) {
    x = max(x, all(-87.0f));
    const Floats n = round_even(x * 1.44269504f);
    Floats r = mul_add(n, all(-0.693145751953125f), x);
    r = mul_add(n, all(-1.428606765330187e-06f), r);
    Floats p = all(1.0f / 720);
    p = mul_add(p, r, all(1.0f / 120));
    p = mul_add(p, r, all(1.0f / 24));
    p = mul_add(p, r, all(1.0f / 6));
    p = mul_add(p, r, all(0.5f));
    p = mul_add(p, r, all(1.0f));
    p = mul_add(p, r, all(1.0f));
    return p * (Floats)((to_ints(n) + 127) << 23);
}

// --- numbers of 16 bits -----------------------------------------------------------------------------------------

static inline float from_half(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = (h >> 10) & 31, mantissa = h & 1023;
    uint32_t bits = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | mantissa << 13;
    float value;
    if (exponent == 0) {  // zero and subnormals: an exact product
        value = (float)mantissa * 5.9604644775390625e-8f;
        memcpy(&bits, &value, 4);
        bits |= sign;
    }
    memcpy(&value, &bits, 4);
    return value;
}

static inline Floats load_halves(const uint8_t* from) {  // IEEE
#if defined(LANE_AVX512)
    return (Floats)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from));
#elif defined(LANE_AVX2)
    return (Floats)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)from));
#elif defined(LANE_NEON)
    return (Floats)vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(from)));
#else
    Floats v;
    for (int lane = 0; lane < LANES; lane++) {
        uint16_t h;
        memcpy(&h, from + 2 * lane, 2);
        v[lane] = from_half(h);
    }
    return v;
#endif
}

static inline uint16_t to_bfloat(float value) {  // to nearest, ties to even
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 64);  // not a number stays none
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline Floats load_bfloats(const uint16_t* from) {
#if defined(LANE_AVX512)
    return (Floats)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)from)), 16);
#elif defined(LANE_AVX2)
    return (Floats)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)from)), 16);
#elif defined(LANE_NEON)
    return (Floats)vshll_n_u16(vld1_u16(from), 16);
#else
    Ints v;
    for (int lane = 0; lane < LANES; lane++) v[lane] = (int32_t)((uint32_t)from[lane] << 16);
    return (Floats)v;
#endif
}

// LANES rows of `width` bfloat16 numbers (a multiple of 32), turned: out[i * LANES + p] = rows[p][i].
static inline void turn_tile(const uint16_t* const* rows, int width, float* out) {
#if defined(LANE_AVX512)
    for (int first = 0; first < width; first += 32) {  // two numbers are one word: 16 x 16 words change places
        __m512i r[16], t[16];
        for (int p = 0; p < 16; p++) r[p] = _mm512_loadu_si512(rows[p] + first);
        for (int p = 0; p < 16; p += 2) {
            t[p] = _mm512_unpacklo_epi32(r[p], r[p + 1]);
            t[p + 1] = _mm512_unpackhi_epi32(r[p], r[p + 1]);
        }
        for (int p = 0; p < 16; p += 4)
            for (int k = 0; k < 2; k++) {
                r[p + 2 * k] = _mm512_unpacklo_epi64(t[p + k], t[p + 2 + k]);
                r[p + 2 * k + 1] = _mm512_unpackhi_epi64(t[p + k], t[p + 2 + k]);
            }
        for (int p = 0; p < 16; p += 8)
            for (int k = 0; k < 4; k++) {
                t[p + k] = _mm512_shuffle_i32x4(r[p + k], r[p + 4 + k], 0x88);
                t[p + 4 + k] = _mm512_shuffle_i32x4(r[p + k], r[p + 4 + k], 0xdd);
            }
        for (int word = 0; word < 16; word++) {
            const int k = word % 8;
            const __m512i pairs = word < 8 ? _mm512_shuffle_i32x4(t[k], t[8 + k], 0x88)
                                           : _mm512_shuffle_i32x4(t[k], t[8 + k], 0xdd);
            float* to = out + (size_t)(first + 2 * word) * LANES;
            _mm512_storeu_si512(to, _mm512_slli_epi32(pairs, 16));
            _mm512_storeu_si512(to + LANES, _mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000)));
        }
    }
#elif defined(LANE_NEON)
    for (int i = 0; i < width; i += 8) {  // 4 x 8 numbers: rows in pairs, then pairs of pairs, then widened
        uint16x8_t r[4];
        for (int p = 0; p < 4; p++) r[p] = vld1q_u16(rows[p] + i);
        const uint16x8x2_t even = vzipq_u16(r[0], r[2]), odd = vzipq_u16(r[1], r[3]);
        for (int half = 0; half < 2; half++) {
            const uint16x8x2_t four = vzipq_u16(even.val[half], odd.val[half]);
            for (int pair = 0; pair < 2; pair++) {
                float* to = out + (size_t)(i + 4 * half + 2 * pair) * LANES;
                store(to, (Floats)vshll_n_u16(vget_low_u16(four.val[pair]), 16));
                store(to + LANES, (Floats)vshll_high_n_u16(four.val[pair], 16));
            }
        }
    }
#else
    for (int p = 0; p < LANES; p++)
        for (int i = 0; i < width; i += LANES) {
            const Floats v = load_bfloats(rows[p] + i);
            for (int lane = 0; lane < LANES; lane++) out[(size_t)(i + lane) * LANES + p] = v[lane];
        }
#endif
}

// --- LANES outputs x 4 inputs of integers -----------------------------------------------------------------------
// `weights`: four unsigned bytes an output; `x`: four signed bytes, the same for all outputs.

static inline Ints dot4(Ints sum, Ints weights, int32_t x) {
#if defined(LANE_AVX512)
    return (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)weights, _mm512_set1_epi32(x));
#elif defined(LANE_AVX2)  // in 16 bits each: two products of whole bytes overflow them
    const __m256i w = (__m256i)weights, in = _mm256_set1_epi32(x);
    const __m256i even = _mm256_madd_epi16(_mm256_and_si256(w, _mm256_set1_epi16(255)),
                                           _mm256_srai_epi16(_mm256_slli_epi16(in, 8), 8));
    const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(w, 8), _mm256_srai_epi16(in, 8));
    return sum + (Ints)_mm256_add_epi32(even, odd);
#elif defined(LANE_I8MM)
    return (Ints)vusdotq_lane_s32((int32x4_t)sum, (uint8x16_t)weights, vcreate_s8((uint32_t)x), 0);
#elif defined(LANE_NEON)  // signed by signed: weights less 128, and the sum of x times -128 taken away again
    const int8x16_t lowered = (int8x16_t)(weights ^ (int32_t)0x80808080);
    const int8x8_t in = vcreate_s8((uint32_t)x);
    const int32x4_t excess = vdotq_lane_s32(vdupq_n_s32(0), vdupq_n_s8(-128), in, 0);
    return (Ints)vdotq_lane_s32((int32x4_t)sum, lowered, in, 0) - (Ints)excess;
#else
    for (int input = 0; input < 4; input++)
        sum += ((weights >> 8 * input) & 255) * (int32_t)(int8_t)((uint32_t)x >> 8 * input);
    return sum;
#endif
}

// As `dot4` for weights of at most 15, which leaves room in 16 bits.
static inline Ints dot4_nibbles(Ints sum, Ints weights, int32_t x) {
#if defined(LANE_AVX2)
    const __m256i pairs = _mm256_maddubs_epi16((__m256i)weights, _mm256_set1_epi32(x));
    return sum + (Ints)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#elif defined(LANE_NEON)  // the same bytes signed or unsigned
    return (Ints)vdotq_lane_s32((int32x4_t)sum, (int8x16_t)weights, vcreate_s8((uint32_t)x), 0);
#else
    return dot4(sum, weights, x);
#endif
}

}  // namespace LANE
