// One decode or verify step of a decoder with grouped attention and a gated feed forward: the whole model in one call.
//
// Weights stay in 4, 8 or 16 bits. Before a product with 4 or 8 a row is rounded to 8 bits a half group of 16,
// so the inner products are integers and exact; 16 are bfloat16, multiplied in float. Everything a row's bits
// depend on is the row itself and its own path: sums run over groups, inputs, positions and chunks in one order that
// no neighbour changes.
//
// Read `run` at the end first. Threads share a phase by outputs, heads or rows, and meet at a barrier after each.
#pragma once
#include <cstdlib>

#include "abi.h"
#include "lanes.h"
#include "team.h"

namespace LANE {

constexpr int GROUP = 32;    // inputs whose weights share a scale
constexpr int HALF = 16;     // inputs of a row that share one: an outlier then coarsens half as many, for next to nothing
constexpr int OUTPUTS = 16;  // of one block of weights
constexpr int CHUNK = 256;  // positions between two corrections of the softmax
constexpr int MOST_ROWS = 64;
constexpr float NEVER = -1e30f;

// Memory that grows and is kept. No standard container: one compiled here for AVX-512 could be the copy that the linker
// keeps for all families.
template <class T>
struct Buffer {
    T* data = nullptr;
    size_t room = 0;

    T* size(size_t count) {
        if (count > room) {
            free(data);
            room = count + count / 2;
            data = static_cast<T*>(aligned_alloc(64, (room * sizeof(T) + 63) / 64 * 64));
            if (!data) abort();
        }
        return data;
    }
    T& operator[](size_t at) { return data[at]; }
    const T& operator[](size_t at) const { return data[at]; }
};

// --- rows before a product --------------------------------------------------------------------------------------

// The rows of a pass as a matrix reads them. One of 4 or 8 bits: integers, a scale for each half group, and for
// each group the sum of scale * integer; one of 16: as they are.
struct Inputs {
    Buffer<float> floats;
    Buffer<int8_t> numbers;
    Buffer<float> scale, total;
    int width = 0;
    bool rounded = true;

    void size(int rows, const Matrix& matrix) {
        width = matrix.inputs, rounded = matrix.bits != 16;
        const size_t count = (size_t)rows * width;
        if (!rounded) return (void)floats.size(count);
        numbers.size(count), scale.size(count / HALF), total.size(count / GROUP);
    }

    void take(int row, const float* from) {
        rounded ? round(row, from) : (void)memcpy(&floats[(size_t)row * width], from, sizeof(float) * width);
    }

   private:
    void round(int row, const float* from) {
        int8_t* to = &numbers[(size_t)row * width];
        float* step = &scale[(size_t)row * (width / HALF)];
        for (int h = 0; h < width / HALF; h++, from += HALF, to += HALF) {
            Floats top = {};
            for (int i = 0; i < HALF; i += LANES) top = max(top, max(load(from + i), -load(from + i)));
            const float largest = max_of(top), inverse = largest > 0 ? 127.0f / largest : 0.0f;
            int32_t sum = 0;
            for (int i = 0; i < HALF; i += LANES)
                sum += store_bytes(to + i, to_ints(round_even(load(from + i) * inverse)));
            step[h] = largest / 127.0f;
            float& both = total[(size_t)row * (width / GROUP) + h / 2];
            both = (h % 2 ? both : 0.0f) + step[h] * (float)sum;
        }
    }
};

static inline float norm_scale(const float* row, int width, float epsilon) {
    Floats sum = {};
    for (int i = 0; i < width; i += LANES) {
        const Floats v = load(row + i);
        sum = mul_add(v, v, sum);
    }
    return 1.0f / sqrtf(sum_of(sum) / (float)width + epsilon);
}

static inline void norm(const float* row, const float* weight, int width, float epsilon, float* to) {
    const float scale = norm_scale(row, width, epsilon);
    for (int i = 0; i < width; i += LANES) store(to + i, load(row + i) * scale * load(weight + i));
}

// --- products ---------------------------------------------------------------------------------------------------

// LANES outputs of `Rows` rows, from LANES * piece on: weights are unpacked once for all of the rows.
template <int Rows, int Bits>
static inline void piece_of(const Matrix& m, int piece, const Inputs& in, int first, Floats* out) {
    constexpr int WORDS = Bits == 4 ? 4 : 8, SIZE = (WORDS + 1) * 64;  // of a block: integers, then scales and minimums
    constexpr int PIECES = OUTPUTS / LANES;
    const int groups = m.inputs / GROUP, part = piece % PIECES;
    const uint8_t* block = m.blocks + (size_t)(piece / PIECES) * groups * SIZE;
    const float *scale = in.scale.data + (size_t)first * groups * 2, *total = in.total.data + (size_t)first * groups;
    const int8_t* x[Rows];
    Floats sum[Rows];  // not `out`: bytes may be anything's, so the compiler would write that at every group
    for (int r = 0; r < Rows; r++) x[r] = in.numbers.data + (size_t)(first + r) * in.width, sum[r] = Floats{};
    for (int g = 0; g < groups; g++, block += SIZE) {
        for (int line = 0; line < SIZE; line += 64) __builtin_prefetch(block + 8 * SIZE + line);
        Ints low[Rows], high[Rows];  // of the two halves; a lone row would wait for its own last product in one chain
        for (int r = 0; r < Rows; r++) low[r] = high[r] = Ints{};
        for (int s = 0; s < 4; s++) {
            const Ints word = load_bytes(block + 64 * s + 4 * LANES * part);
            const Ints next = Bits == 8 ? load_bytes(block + 64 * (s + 4) + 4 * LANES * part) : Ints{};
            for (int r = 0; r < Rows; r++) {
                int32_t four, later;
                const int8_t* at = x[r] + g * GROUP + 4 * s;
                memcpy(&four, at, 4), memcpy(&later, at + HALF, 4);
                if (Bits == 8) {
                    low[r] = dot4(low[r], word, four), high[r] = dot4(high[r], next, later);
                } else {
                    low[r] = dot4_nibbles(low[r], word & 0x0f0f0f0f, four);
                    high[r] = dot4_nibbles(high[r], (word >> 4) & 0x0f0f0f0f, later);
                }
            }
        }
        const uint8_t* factors = block + 64 * WORDS + 2 * LANES * part;
        const Floats d = load_halves(factors), least = load_halves(factors + 32);
        for (int r = 0; r < Rows; r++) {
            const size_t at = (size_t)r * groups + g;
            const Floats both = mul_add(to_floats(high[r]), all(scale[2 * at + 1]), to_floats(low[r]) * scale[2 * at]);
            sum[r] = mul_add(d, both, sum[r]);
            sum[r] = mul_add(least, all(total[at]), sum[r]);
        }
    }
    for (int r = 0; r < Rows; r++) out[r] = sum[r];
}

// The same of 16 bits. A word holds two inputs of an output: even ones in one sum, odd ones in another.
template <int Rows>
static inline void piece_of_floats(const Matrix& m, int piece, const Inputs& in, int first, Floats* out) {
    constexpr int PIECES = OUTPUTS / LANES;
    const uint8_t* words = m.blocks + (size_t)(piece / PIECES) * m.inputs * OUTPUTS * 2 + 4 * LANES * (piece % PIECES);
    const float* x = in.floats.data + (size_t)first * in.width;
    Floats even[Rows], odd[Rows];
    for (int r = 0; r < Rows; r++) even[r] = odd[r] = Floats{};
    for (int i = 0; i < m.inputs; i += 2, words += 64) {
        __builtin_prefetch(words + 4096);
        const Ints pair = load_bytes(words);
        const Floats low = (Floats)(pair << 16), high = (Floats)(pair & (int32_t)0xffff0000);
        for (int r = 0; r < Rows; r++) {
            even[r] = mul_add(low, all(x[(size_t)r * in.width + i]), even[r]);
            odd[r] = mul_add(high, all(x[(size_t)r * in.width + i + 1]), odd[r]);
        }
    }
    for (int r = 0; r < Rows; r++) out[r] = even[r] + odd[r];
}

template <int Rows, int Bits>
static inline void some_rows(const Matrix& m, int piece, const Inputs& in, int first, Floats* out) {
    if constexpr (Bits == 16) piece_of_floats<Rows>(m, piece, in, first, out);
    else piece_of<Rows, Bits>(m, piece, in, first, out);
}

template <int Bits>
static inline void piece_of_all(const Matrix& m, int piece, int rows, const Inputs& in, Floats* out) {
    int r = 0;
    for (; r + 4 <= rows; r += 4) some_rows<4, Bits>(m, piece, in, r, out + r);
    if (rows - r == 3) some_rows<3, Bits>(m, piece, in, r, out + r);
    if (rows - r == 2) some_rows<2, Bits>(m, piece, in, r, out + r);
    if (rows - r == 1) some_rows<1, Bits>(m, piece, in, r, out + r);
}

// LANES outputs of all rows.
static inline void product(const Matrix& m, int piece, int rows, const Inputs& in, Floats* out) {
    if (m.bits == 4) piece_of_all<4>(m, piece, rows, in, out);
    if (m.bits == 8) piece_of_all<8>(m, piece, rows, in, out);
    if (m.bits == 16) piece_of_all<16>(m, piece, rows, in, out);
}

// --- attention --------------------------------------------------------------------------------------------------

static inline void turn(float* head, const float* turns, int width, bool halves) {
    for (int i = 0; i < width / 2; i++) {
        const int x = halves ? i : 2 * i, y = halves ? i + width / 2 : 2 * i + 1;
        const float a = head[x], b = head[y], c = turns[2 * i], s = turns[2 * i + 1];
        head[x] = a * c - b * s;
        head[y] = a * s + b * c;
    }
}

// Where a row's positions lie: those before its block at their own places, its path wherever the tree put it.
struct Path {
    Buffer<int32_t> places;  // of the block's rows on the path, by depth
    int32_t start = 0, depth = 0;

    void find(const Span& span, const int32_t* parents, int row) {
        start = span.start, depth = 0;
        for (int at = row; at; at = parents[at]) depth++;
        places.size(depth + 1);
        for (int at = row, d = depth; d >= 0; at = parents[at], d--) places[d] = span.start + at;
    }
    int32_t seen() const { return start + depth + 1; }
    int32_t place(int32_t position) const { return position < start ? position : places[position - start]; }
};

template <int N>
struct Number {
    static constexpr int value = N;
};

// The query heads of one KV head, for one or more rows of a sequence: chunk by chunk of positions, tile by tile of LANES.
struct Attention {
    Buffer<float> keys, values, scores, sums, best;  // scratch of one thread
    Path paths[MOST_ROWS];

    // Queries [count][head_dim], scaled; query q belongs to path[of[q]]. Mixed values go to `out` [count][head_dim].
    void attend(const uint16_t* key_rows, const uint16_t* value_rows, int dim, int num_paths, int count, const int* of,
                const float* queries, float* out) {
        keys.size((size_t)LANES * dim), values.size((size_t)LANES * dim);
        scores.size((size_t)count * CHUNK), sums.size(count), best.size(count);
        for (int q = 0; q < count; q++) sums[q] = 0.0f, best[q] = NEVER;
        memset(out, 0, sizeof(float) * (size_t)count * dim);
        int longest = 0, shared = paths[0].start;
        for (int p = 0; p < num_paths; p++) longest = paths[p].seen() > longest ? paths[p].seen() : longest;
        for (int chunk = 0; chunk < longest; chunk += CHUNK) {
            const int end = chunk + CHUNK < longest ? chunk + CHUNK : longest;
            each_tile(key_rows, dim, chunk, end, shared, count, of, [&](int tile, int from, int to) {
                turn_tile(tile_rows, dim, keys.data);
                float* at = &scores[(size_t)from * CHUNK + tile - chunk];
                by_fours(from, to, [&](int q, auto n) {
                    score<decltype(n)::value>(queries + (size_t)q * dim, dim, at + (size_t)(q - from) * CHUNK);
                });
            });
            for (int q = 0; q < count; q++) soften(q, paths[of[q]].seen() - chunk, dim, out + (size_t)q * dim);
            each_tile(value_rows, dim, chunk, end, shared, count, of, [&](int tile, int from, int to) {
                for (int p = 0; p < LANES; p++)
                    for (int i = 0; i < dim; i += LANES) store(&values[(size_t)p * dim + i], load_bfloats(tile_rows[p] + i));
                const int positions = paths[of[from]].seen() - tile < LANES ? paths[of[from]].seen() - tile : LANES;
                const float* at = &scores[(size_t)from * CHUNK + tile - chunk];
                by_fours(from, to, [&](int q, auto n) {
                    mix<decltype(n)::value>(at + (size_t)(q - from) * CHUNK, positions, dim, out + (size_t)q * dim);
                });
            });
        }
        for (int q = 0; q < count; q++)
            for (int i = 0; i < dim; i += LANES) {
                float* to = out + (size_t)q * dim + i;
                store(to, load(to) / all(sums[q]));
            }
    }

   private:
    const uint16_t* tile_rows[LANES];

    // Calls use(tile, from, to) for the queries that see a tile, with its rows in `tile_rows`. A tile before the block
    // is the same for all; one that reaches into it is looked up path by path.
    template <class Use>
    void each_tile(const uint16_t* rows, int dim, int from, int to, int shared, int count, const int* of, Use use) {
        for (int tile = from; tile < to; tile += LANES)
            for (int q = 0, next; q < count; q = next) {
                const Path& path = paths[of[q]];
                for (next = q + 1; next < count && (tile + LANES <= shared || of[next] == of[q]);) next++;
                if (path.seen() <= tile) continue;
                for (int p = 0; p < LANES; p++) {  // past the path's end: any row that can be read, its score unused
                    const int position = tile + p < path.seen() ? tile + p : path.seen() - 1;
                    tile_rows[p] = rows + (size_t)path.place(position) * dim;
                }
                use(tile, q, next);
            }
    }

    // Four queries share what is loaded once; a query's sums are the same in any company.
    template <class Use>
    static void by_fours(int from, int to, Use use) {
        for (; to - from >= 4; from += 4) use(from, Number<4>());
        if (to - from == 3) use(from, Number<3>());
        if (to - from == 2) use(from, Number<2>());
        if (to - from == 1) use(from, Number<1>());
    }

    template <int Queries>
    void score(const float* query, int dim, float* to) const {
        Floats even[Queries], odd[Queries];
        for (int q = 0; q < Queries; q++) even[q] = odd[q] = Floats{};
        for (int i = 0; i < dim; i += 2) {
            const Floats a = load(&keys[(size_t)i * LANES]), b = load(&keys[(size_t)(i + 1) * LANES]);
            for (int q = 0; q < Queries; q++) {
                even[q] = mul_add(all(query[(size_t)q * dim + i]), a, even[q]);
                odd[q] = mul_add(all(query[(size_t)q * dim + i + 1]), b, odd[q]);
            }
        }
        for (int q = 0; q < Queries; q++) store(to + (size_t)q * CHUNK, even[q] + odd[q]);
    }

    // Scores of a chunk become weights against the best score so far; what was mixed before shrinks accordingly.
    void soften(int q, int seen, int dim, float* mixed) {
        if (seen <= 0) return;
        const int tiles = ((seen < CHUNK ? seen : CHUNK) + LANES - 1) / LANES;
        float* s = &scores[(size_t)q * CHUNK];
        for (int p = seen; p < tiles * LANES; p++) s[p] = NEVER;
        Floats top = all(best[q]);
        for (int t = 0; t < tiles; t++) top = max(top, load(s + t * LANES));
        const float highest = max_of(top);
        Floats sum = {};
        for (int t = 0; t < tiles; t++) {
            Floats weight = exp_of(load(s + t * LANES) - highest);
            if (seen - t * LANES < LANES)
                for (int p = seen - t * LANES; p < LANES; p++) weight[p] = 0.0f;
            store(s + t * LANES, weight);
            sum = sum + weight;
        }
        const float shrink = exp_of(all(best[q] - highest))[0];
        if (best[q] > NEVER) {
            for (int i = 0; i < dim; i += LANES) store(mixed + i, load(mixed + i) * shrink);
            sums[q] = sums[q] * shrink + sum_of(sum);
        } else {
            sums[q] = sum_of(sum);
        }
        best[q] = highest;
    }

    template <int Queries>
    void mix(const float* weights, int positions, int dim, float* mixed) const {
        for (int first = 0; first < dim; first += 2 * LANES) {
            Floats low[Queries], high[Queries];
            for (int q = 0; q < Queries; q++) {
                low[q] = load(mixed + (size_t)q * dim + first);
                high[q] = load(mixed + (size_t)q * dim + first + LANES);
            }
            for (int p = 0; p < positions; p++) {
                const float* value = &values[(size_t)p * dim + first];
                const Floats a = load(value), b = load(value + LANES);
                for (int q = 0; q < Queries; q++) {
                    const Floats weight = all(weights[(size_t)q * CHUNK + p]);
                    low[q] = mul_add(weight, a, low[q]), high[q] = mul_add(weight, b, high[q]);
                }
            }
            for (int q = 0; q < Queries; q++) {
                store(mixed + (size_t)q * dim + first, low[q]);
                store(mixed + (size_t)q * dim + first + LANES, high[q]);
            }
        }
    }
};

// --- the step ---------------------------------------------------------------------------------------------------

struct Scratch {  // of one thread
    Inputs inputs;
    Attention attention;
    Buffer<float> row, queries, mixed;
    Buffer<int> of;
};

struct Shared {  // of the pass
    Buffer<float> qkv, attended, gated;
};

struct Step {
    const Model& model;
    const Pass& pass;
    Shared& shared;
    Scratch& mine;
    Team& team;
    const int thread;
    const Shape& shape = model.shape;
    const int qkv_width = (shape.heads + 2 * shape.kv_heads) * shape.head_dim;

    // Of `count` pieces, those of this thread.
    void split(int count, int& from, int& to) const {
        from = (int)((int64_t)count * thread / team.threads), to = (int)((int64_t)count * (thread + 1) / team.threads);
    }

    void take_normed(const Matrix& matrix, const float* rows, const float* weight) {
        mine.inputs.size(pass.rows, matrix), mine.row.size(shape.hidden);
        for (int r = 0; r < pass.rows; r++) {
            norm(rows + (size_t)r * shape.hidden, weight, shape.hidden, shape.epsilon, mine.row.data);
            mine.inputs.take(r, mine.row.data);
        }
    }

    void take_plain(const Matrix& matrix, const float* rows) {
        mine.inputs.size(pass.rows, matrix);
        for (int r = 0; r < pass.rows; r++) mine.inputs.take(r, rows + (size_t)r * matrix.inputs);
    }

    void multiply(const Matrix& matrix, float* to) {
        Floats out[MOST_ROWS];
        int from, end;
        split(matrix.outputs / LANES, from, end);
        for (int piece = from; piece < end; piece++) {
            product(matrix, piece, pass.rows, mine.inputs, out);
            for (int r = 0; r < pass.rows; r++) store(to + (size_t)r * matrix.outputs + piece * LANES, out[r]);
        }
    }

    void multiply_onto_stream(const Matrix& matrix) {
        Floats out[MOST_ROWS];
        int from, end;
        split(matrix.outputs / LANES, from, end);
        for (int piece = from; piece < end; piece++) {
            product(matrix, piece, pass.rows, mine.inputs, out);
            for (int r = 0; r < pass.rows; r++) {
                float* to = pass.stream + (size_t)r * shape.hidden + piece * LANES;
                store(to, load(to) + out[r]);
            }
        }
    }

    void gate(const Layer& layer) {
        Floats gate[MOST_ROWS], up[MOST_ROWS];
        const int pieces = shape.feed_forward / LANES;
        int from, end;
        split(pieces, from, end);
        for (int piece = from; piece < end; piece++) {
            product(layer.gate_up, piece, pass.rows, mine.inputs, gate);
            product(layer.gate_up, pieces + piece, pass.rows, mine.inputs, up);
            for (int r = 0; r < pass.rows; r++) {
                const Floats silu = gate[r] / (exp_of(min(-gate[r], all(87.0f))) + 1.0f);
                store(&shared.gated[(size_t)r * shape.feed_forward + piece * LANES], silu * up[r]);
            }
        }
    }

    // Queries are normed, turned and scaled in place; keys and values go to the sequence's rows.
    void place(int layer) {
        const Layer& weights = model.layer[layer];
        const int dim = shape.head_dim, units = pass.rows * (shape.heads + 2 * shape.kv_heads);
        int from, end;
        split(units, from, end);
        for (int unit = from; unit < end; unit++) {
            const int r = unit / (shape.heads + 2 * shape.kv_heads), h = unit % (shape.heads + 2 * shape.kv_heads);
            float* head = &shared.qkv[(size_t)r * qkv_width + (size_t)h * dim];
            const bool is_query = h < shape.heads, is_key = !is_query && h < shape.heads + shape.kv_heads;
            const float* weight = is_query ? weights.query_norm : is_key ? weights.key_norm : nullptr;
            if (weight) norm(head, weight, dim, shape.epsilon, head);
            if (is_query || is_key) turn(head, pass.turns + (size_t)r * dim, dim, shape.turn_halves);
            if (is_query) {
                const float scale = 1.0f / sqrtf((float)dim);
                for (int i = 0; i < dim; i++) head[i] *= scale;
                continue;
            }
            const Span& span = span_of(r);
            const int kv_head = is_key ? h - shape.heads : h - shape.heads - shape.kv_heads;
            uint16_t* to = kv_row(span, layer, is_key ? 0 : 1, kv_head) + (size_t)(span.start + r - span.first) * dim;
            for (int i = 0; i < dim; i++) to[i] = to_bfloat(head[i]);
        }
    }

    void attend(int layer) {
        const int group = shape.heads / shape.kv_heads;
        int from, end, unit = 0;
        split(pass.rows * shape.heads, from, end);
        for (int s = 0; s < pass.spans; s++) {
            const Span& span = pass.span[s];
            for (int kv_head = 0; kv_head < shape.kv_heads; kv_head++) {
                const int first = unit, last = unit += span.rows * group;
                const int begin = from > first ? from : first, stop = end < last ? end : last;
                if (begin < stop) attend_head(layer, span, kv_head, begin - first, stop - first);
            }
        }
    }

    // Queries `from` to `end` of those that look at one KV head, counted row by row.
    void attend_head(int layer, const Span& span, int kv_head, int from, int end) {
        const int dim = shape.head_dim, group = shape.heads / shape.kv_heads, count = end - from;
        const int first_row = from / group, rows = (end - 1) / group - first_row + 1;
        mine.queries.size((size_t)count * dim), mine.mixed.size((size_t)count * dim), mine.of.size(count);
        for (int r = 0; r < rows; r++) mine.attention.paths[r].find(span, pass.parents + span.first, first_row + r);
        for (int q = 0; q < count; q++) {
            mine.of[q] = (from + q) / group - first_row;
            memcpy(&mine.queries[(size_t)q * dim], head_of(shared.qkv.data, qkv_width, span, kv_head, from + q), 4 * dim);
        }
        mine.attention.attend(kv_row(span, layer, 0, kv_head), kv_row(span, layer, 1, kv_head), dim, rows, count,
                              mine.of.data, mine.queries.data, mine.mixed.data);
        for (int q = 0; q < count; q++)
            memcpy(head_of(shared.attended.data, shape.heads * dim, span, kv_head, from + q), &mine.mixed[(size_t)q * dim], 4 * dim);
    }

    float* head_of(float* rows, int width, const Span& span, int kv_head, int query) const {
        const int group = shape.heads / shape.kv_heads;
        return rows + (size_t)(span.first + query / group) * width + (size_t)(kv_head * group + query % group) * shape.head_dim;
    }

    uint16_t* kv_row(const Span& span, int layer, int which, int kv_head) const {
        return span.kv[layer] + ((size_t)which * shape.kv_heads + kv_head) * (size_t)span.window * shape.head_dim;
    }

    const Span& span_of(int row) const {
        int s = 0;
        while (row >= pass.span[s].first + pass.span[s].rows) s++;
        return pass.span[s];
    }

    void logits() {
        mine.inputs.size(pass.wanted_rows, model.head), mine.row.size(shape.hidden);
        bool broken[MOST_ROWS];
        for (int w = 0; w < pass.wanted_rows; w++) {
            const float* row = pass.stream + (size_t)pass.wanted[w] * shape.hidden;
            broken[w] = !(norm_scale(row, shape.hidden, shape.epsilon) > 0.0f);  // infinite, or not a number
            norm(row, model.last_norm, shape.hidden, shape.epsilon, mine.row.data);
            mine.inputs.take(w, mine.row.data);
        }
        Floats out[MOST_ROWS];
        int from, end;
        split(model.head.outputs / LANES, from, end);
        for (int piece = from; piece < end; piece++) {
            product(model.head, piece, pass.wanted_rows, mine.inputs, out);
            for (int w = 0; w < pass.wanted_rows; w++)
                store(pass.logits + (size_t)w * model.head.outputs + piece * LANES, broken[w] ? all(NAN) : out[w]);
        }
    }

    void run() {
        for (int l = 0; l < shape.layers; l++) {
            const Layer& layer = model.layer[l];
            take_normed(layer.qkv, pass.stream, layer.attention_norm);
            multiply(layer.qkv, shared.qkv.data);
            team.meet();
            place(l);
            team.meet();
            attend(l);
            team.meet();
            take_plain(layer.attention_output, shared.attended.data);
            multiply_onto_stream(layer.attention_output);
            team.meet();
            take_normed(layer.gate_up, pass.stream, layer.feed_forward_norm);
            gate(layer);
            team.meet();
            take_plain(layer.down, shared.gated.data);
            multiply_onto_stream(layer.down);
            team.meet();
        }
        if (pass.wanted_rows) logits();
    }
};

struct Work {
    const Model* model;
    const Pass* pass;
    Team* team;
    Shared shared;
    Scratch scratch[Team::MOST];
};

// One step at a time in a process: what it works in is kept from one to the next.
void step(const Model& model, const Pass& pass, Team& team) {
    static Work work;
    const Shape& shape = model.shape;
    work.model = &model, work.pass = &pass, work.team = &team;
    work.shared.qkv.size((size_t)pass.rows * (shape.heads + 2 * shape.kv_heads) * shape.head_dim);
    work.shared.attended.size((size_t)pass.rows * shape.heads * shape.head_dim);
    work.shared.gated.size((size_t)pass.rows * shape.feed_forward);
    team.run([](void* given, int thread) {
        Work& w = *static_cast<Work*>(given);
        Step{*w.model, *w.pass, w.shared, w.scratch[thread], *w.team, thread}.run();
    }, &work);
}

}  // namespace LANE
