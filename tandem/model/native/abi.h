// What Python hands over, by ctypes. Field for field as in `step.py`; all sizes are numbers of elements.
#pragma once
#include <cstdint>

extern "C" {

// Weights in blocks of 16 outputs x 32 inputs: the integers, then 16 scales and 16 minimums as IEEE halves.
// weight = scale * integer + minimum. 4 bits: four vectors, input s*4+b in the low and 16+s*4+b in the high nibble of
// byte o*4+b. 8 bits: eight vectors, input s*4+b in byte o*4+b. 16 bits: bfloat16 without scales, sixteen vectors,
// input s*2+b in half o*2+b.
struct Matrix {
    const uint8_t* blocks;
    int32_t outputs, inputs, bits, unused;
};

struct Layer {
    Matrix qkv, attention_output, gate_up, down;
    const float *attention_norm, *feed_forward_norm;
    const float *query_norm, *key_norm;  // over a head; null for families without
};

struct Shape {
    int32_t layers, hidden, feed_forward, heads, kv_heads, head_dim;
    int32_t turn_halves;  // 1: number i turns with i + head_dim / 2; 0: 2 i with 2 i + 1
    float epsilon;
};

struct Model {
    Shape shape;
    const Layer* layer;
    const float* last_norm;
    Matrix head;
};

// The rows one sequence brings. `kv` holds, for each layer, where its keys begin: [2, kv_heads, window, head_dim].
struct Span {
    uint16_t* const* kv;
    int64_t window;
    int32_t start, first, rows, unused;  // position of the first row; its place in the pass; how many
};

struct Pass {
    int32_t rows, spans, wanted_rows, unused;
    const Span* span;
    const int32_t* parents;  // of each row, within its span; the first names itself. Depth is position.
    const float* turns;      // [rows, head_dim]: cosine and sine of each pair
    const int32_t* wanted;   // rows whose logits are asked for
    float* stream;           // [rows, hidden], in: embeddings; out: the residual stream
    float* logits;           // [wanted_rows, head.outputs]
};

}  // extern "C"
