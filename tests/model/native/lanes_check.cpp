// The words of lanes.h, and the products of step.h, against arithmetic written out number by number. Compiled once for
// each family in place of its source, which it includes as FAMILY and which brings the processor's instructions along.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "checks.h"
#include FAMILY

#ifdef LANE
#define TEXT_OF(name) #name
#define NAME_OF(name) TEXT_OF(name)

namespace LANE {

static int32_t scalar_dot(const uint8_t* weights, const int8_t* x, int count) {
    int32_t sum = 0;
    for (int i = 0; i < count; i++) sum += (int32_t)weights[i] * x[i];
    return sum;
}

// Every four of `edges` in each lane's place, with every four of edge activations, onto sums near both ends of a group.
static bool dots_are_exact(const uint8_t* edges, int count, bool nibbles) {
    static const int8_t activations[] = {-127, 1, 127};
    static const int32_t before[] = {0, 32 * 255 * 127, -32 * 255 * 127, 1};
    const int patterns = count * count * count * count;
    uint8_t weights[LANES * 4];
    int8_t x[4];
    for (int first = 0; first < patterns; first++) {
        for (int lane = 0; lane < LANES; lane++)
            for (int i = 0, left = (first + lane) % patterns; i < 4; i++, left /= count) weights[4 * lane + i] = edges[left % count];
        for (int pattern = 0; pattern < 81; pattern++) {
            for (int i = 0, left = pattern; i < 4; i++, left /= 3) x[i] = activations[left % 3];
            int32_t four;
            memcpy(&four, x, 4);
            const int32_t start = before[pattern % 4];
            const Ints sum = Ints{} + start, w = load_bytes(weights);
            const Ints result = nibbles ? dot4_nibbles(sum, w, four) : dot4(sum, w, four);
            for (int lane = 0; lane < LANES; lane++)
                if (result[lane] != start + scalar_dot(weights + 4 * lane, x, 4)) return false;
        }
    }
    return true;
}

// Whole products of integers, with scales of one, are small enough for floats to hold them.
template <int Bits>
static bool products_are_exact(int rows, bool at_the_ends) {
    constexpr int OUT = 32, IN = 96, TOP = Bits == 4 ? 15 : 255, SIZE = Bits == 4 ? 320 : Bits == 8 ? 576 : 1024;
    Random random{(uint64_t)rows * 2 + at_the_ends};
    static uint8_t blocks[OUT / 16 * IN / 32 * SIZE], weights[OUT][IN];
    memset(blocks, 0, sizeof blocks);
    for (int o = 0; o < OUT; o++)
        for (int i = 0; i < IN; i++) {
            const int weight = at_the_ends ? TOP * random.below(2) : random.below(TOP + 1), at = i % 32;
            uint8_t* block = blocks + (o / 16 * (IN / 32) + i / 32) * SIZE;
            weights[o][i] = (uint8_t)weight;
            if (Bits == 4) block[64 * (at % 16 / 4) + o % 16 * 4 + at % 4] |= (uint8_t)(at < 16 ? weight : weight << 4);
            if (Bits == 8) block[64 * (at / 4) + o % 16 * 4 + at % 4] = (uint8_t)weight;
            const uint16_t number = to_bfloat((float)weight), one = 0x3c00;
            if (Bits == 16) memcpy(block + 64 * (at / 2) + o % 16 * 4 + at % 2 * 2, &number, 2);
            if (Bits < 16) memcpy(block + SIZE - 64 + 2 * (o % 16), &one, 2);  // minimums stay zero
        }
    const Matrix matrix{blocks, OUT, IN, Bits, 0};
    Inputs in;
    in.size(rows, matrix);
    static int8_t x[MOST_ROWS * IN];
    for (int i = 0; i < rows * IN; i++) x[i] = (int8_t)(at_the_ends ? 254 * random.below(2) - 127 : random.below(255) - 127);
    for (int i = 0; i < rows * IN; i++)
        if (Bits == 16) in.floats[i] = x[i];
        else in.numbers[i] = x[i], in.scale[i / HALF] = 1.0f, in.total[i / GROUP] = 0.0f;
    Floats out[MOST_ROWS];
    bool is_good = true;
    for (int piece = 0; piece < OUT / LANES; piece++) {
        product(matrix, piece, rows, in, out);
        for (int r = 0; r < rows; r++)
            for (int lane = 0; lane < LANES; lane++)
                is_good &= out[r][lane] == (float)scalar_dot(weights[piece * LANES + lane], x + r * IN, IN);
    }
    free(in.numbers.data), free(in.scale.data), free(in.total.data), free(in.floats.data);
    return is_good;
}

template <int Bits>
static bool products_of_any_rows_are_exact() {
    static const int counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 31, MOST_ROWS};  // whatever fours leave over, and the most
    for (int rows : counts)
        if (!products_are_exact<Bits>(rows, false) || !products_are_exact<Bits>(rows, true)) return false;
    return true;
}

static bool halves_are_read() {
    for (int first = 0; first < 65536; first += LANES) {
        uint16_t halves[LANES];
        for (int lane = 0; lane < LANES; lane++) halves[lane] = (uint16_t)(first + lane);
        uint8_t bytes[2 * LANES];
        memcpy(bytes, halves, sizeof bytes);
        const Floats read = load_halves(bytes);
        for (int lane = 0; lane < LANES; lane++) {
            const int exponent = halves[lane] >> 10 & 31, mantissa = halves[lane] & 1023;
            const double size = exponent == 0 ? ldexp(mantissa, -24) : ldexp(1024 + mantissa, exponent - 25);
            if (exponent < 31 && read[lane] != (float)(halves[lane] & 0x8000 ? -size : size)) return false;
            if (exponent == 31 && (mantissa ? read[lane] == read[lane] : fabsf(read[lane]) != INFINITY)) return false;
        }
    }
    return true;
}

static bool bfloats_are_read() {
    for (int first = 0; first < 65536; first += LANES) {
        uint16_t numbers[LANES];
        for (int lane = 0; lane < LANES; lane++) numbers[lane] = (uint16_t)(first + lane);
        const Ints bits = (Ints)load_bfloats(numbers);
        for (int lane = 0; lane < LANES; lane++)
            if ((uint32_t)bits[lane] != (uint32_t)numbers[lane] << 16) return false;
    }
    return true;
}

static bool tiles_are_turned() {
    constexpr int WIDTH = 96;
    uint16_t rows[LANES][WIDTH];
    const uint16_t* at[LANES];
    float turned[WIDTH * LANES];
    for (int p = 0; p < LANES; p++) {
        at[p] = rows[p];
        for (int i = 0; i < WIDTH; i++) rows[p][i] = to_bfloat((float)(p * WIDTH + i) / 8);  // some rounded, all different bits
    }
    turn_tile(at, WIDTH, turned);
    for (int p = 0; p < LANES; p++)
        for (int i = 0; i < WIDTH; i++) {
            uint32_t bits;
            memcpy(&bits, &turned[i * LANES + p], 4);
            if (bits != (uint32_t)rows[p][i] << 16) return false;
        }
    return true;
}

static bool exponentials_are_near() {  // three units in the last place, as lanes.h says
    for (float x = -87.0f; x < 88.0f; x += 0.0171f * LANES) {
        Floats xs;
        for (int lane = 0; lane < LANES; lane++) xs[lane] = x + 0.0171f * (float)lane;
        const Floats found = exp_of(xs);
        for (int lane = 0; lane < LANES; lane++) {
            const double exact = exp((double)xs[lane]);
            if (fabs(found[lane] - exact) > 3 * ldexp(1, ilogb(exact) - 23)) return false;
        }
    }
    return exp_of(all(-1000.0f))[0] == exp_of(all(-87.0f))[0] && exp_of(all(0.0f))[0] == 1.0f;
}

static bool lanes_are_joined() {  // whichever lane holds the largest; every lane counted once
    for (int lane = 0; lane < LANES; lane++) {
        Floats v = all(-2.0f);
        v[lane] = 1.0f;
        if (max_of(v) != 1.0f || sum_of(v) != 1.0f - 2.0f * (LANES - 1)) return false;
        if (mul_add(v, all(3.0f), all(0.5f))[lane] != 3.5f) return false;
    }
    return true;
}

void check_lanes() {
    const char* family = NAME_OF(LANE);
    static const uint8_t bytes[] = {0, 1, 15, 127, 128, 255}, nibbles[] = {0, 1, 7, 8, 15};
    check(family, dots_are_exact(bytes, 6, false), "dot products of bytes are exact");
    check(family, dots_are_exact(nibbles, 5, true), "dot products of nibbles are exact");
    check(family, products_of_any_rows_are_exact<4>(), "products of 4 bits are exact for any rows");
    check(family, products_of_any_rows_are_exact<8>(), "products of 8 bits are exact for any rows");
    check(family, products_of_any_rows_are_exact<16>(), "products of bfloat16 are exact for any rows");
    check(family, halves_are_read(), "every half is read");
    check(family, bfloats_are_read(), "every bfloat16 is read");
    check(family, tiles_are_turned(), "tiles are turned");
    check(family, exponentials_are_near(), "exponentials are within three units of the last place");
    check(family, lanes_are_joined(), "lanes are joined");
}

}  // namespace LANE
#endif
