// The doors for ctypes, and which processor family's code runs here.
#include "abi.h"
#include "team.h"

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#define FAMILY(name) namespace name { void step(const Model&, const Pass&, Team&); }
FAMILY(portable)
#if defined(__x86_64__)
FAMILY(avx2)
FAMILY(avx512)
#elif defined(__aarch64__)
FAMILY(neon)
FAMILY(neon_i8mm)
#endif

namespace {

struct Family {
    const char* name;
    void (*step)(const Model&, const Pass&, Team&);
    bool runs;
};

const Family* families() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                            __builtin_cpu_supports("avx512vnni");
    static const Family all[] = {
        {"avx512", avx512::step, has_avx512}, {"avx2", avx2::step, has_avx2}, {"portable", portable::step, true}, {}};
#elif defined(__aarch64__)
    const bool has_dots = getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
    const bool has_mixed_dots = has_dots && (getauxval(AT_HWCAP2) & HWCAP2_I8MM);
    static const Family all[] = {{"neon_i8mm", neon_i8mm::step, has_mixed_dots},
                                 {"neon", neon::step, has_dots},
                                 {"portable", portable::step, true},
                                 {}};
#else
    static const Family all[] = {{"portable", portable::step, true}, {}};
#endif
    return all;
}

}  // namespace

extern "C" {

// The families this processor runs, best first; null past the last.
const char* tandem_family(int index) {
    for (const Family* each = families(); each->name; each++)
        if (each->runs && index-- == 0) return each->name;
    return nullptr;
}

void* tandem_team(int threads) { return new Team(threads); }
void tandem_disband(void* team) { delete static_cast<Team*>(team); }

// `family` counts as in `tandem_family`. One step at a time in a process.
void tandem_step(int family, const Model* model, const Pass* pass, void* team) {
    for (const Family* each = families(); each->name; each++)
        if (each->runs && family-- == 0) return each->step(*model, *pass, *static_cast<Team*>(team));
}

}  // extern "C"
