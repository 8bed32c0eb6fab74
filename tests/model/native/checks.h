// What the checks of the native step share. Each says one line; the program's status is whether all were good.
#pragma once
#include <cstdint>

bool check(const char* family, bool is_good, const char* what);  // returns `is_good`

struct Random {  // the same numbers on every machine
    uint64_t state;

    uint32_t next() {
        state = state * 6364136223846793005u + 1442695040888963407u;
        return (uint32_t)(state >> 33);
    }
    int below(int end) { return (int)(next() % (uint32_t)end); }
    float spread() { return ((float)next() / 1073741824.0f) - 1.0f; }  // from -1 to 1
};
