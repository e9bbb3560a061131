// What sm_90a adds: barriers in shared memory that count bytes, bulk copies, and products of a warp group.

typedef unsigned int u32;
typedef unsigned long long u64;

__device__ __forceinline__ unsigned shared_address(const void* at) { return (unsigned)__cvta_generic_to_shared(at); }

__device__ __forceinline__ u32 shared_word(unsigned at) {
    u32 word;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(at));
    return word;
}

__device__ __forceinline__ void set_barrier(u64* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

// Barriers set by one thread, for the copy engine's eyes.
__device__ __forceinline__ void show_barriers() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void arrive(u64* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// An arrival that also announces bytes.
__device__ __forceinline__ void expect_bytes(u64* barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}

// Returns once the barrier's phase of this parity is over.
__device__ __forceinline__ void wait(u64* barrier, int parity) {
    asm volatile(
        "{\n"
        ".reg .pred over;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;\n"
        "@!over bra again;\n"
        "}" ::"r"(shared_address(barrier)),
        "r"(parity)
        : "memory");
}

// 16-byte aligned bytes from global to shared memory; the barrier counts them.
__device__ __forceinline__ void copy_bulk(unsigned to, const void* from, int bytes, u64* barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}

__device__ __forceinline__ void copy_16(unsigned to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

// The barrier counts an arrival of this thread once all it copied before has come.
__device__ __forceinline__ void arrive_after_copies(u64* barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int PENDING>
__device__ __forceinline__ void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// What this thread wrote to shared memory, or knows to be written, becomes visible to the matrix unit.
__device__ __forceinline__ void show_to_matrix_unit() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ void wait_for_threads(int barrier, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Lines of 128 bytes whose 16-byte pieces are exchanged by piece ^= line mod 8; eight lines, 1024 bytes, are a group.
// The operand's lines are its rows (a K-major operand), the next 16 inputs lie 32 bytes on.
__device__ __forceinline__ u64 swizzled_rows(unsigned at) {
    return (u64)((at & 0x3ffffu) >> 4) | (u64)1 << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}

// The same memory read across: lines are inputs of 64 outputs each, the next 64 outputs lie `pitch` bytes on.
__device__ __forceinline__ u64 swizzled_columns(unsigned at, unsigned pitch) {
    return (u64)((at & 0x3ffffu) >> 4) | (u64)(pitch >> 4) << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}

__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int PENDING>
__device__ __forceinline__ void wait_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

#define OPERANDS_4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define OPERANDS_8(d, i) OPERANDS_4(d, i), OPERANDS_4(d, i + 4)
#define OPERANDS_16(d, i) OPERANDS_8(d, i), OPERANDS_8(d, i + 8)
#define OPERANDS_32(d, i) OPERANDS_16(d, i), OPERANDS_16(d, i + 16)
#define OPERANDS_64(d, i) OPERANDS_32(d, i), OPERANDS_32(d, i + 32)
#define NAMES_32                                                                                            \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27," \
    "%28,%29,%30,%31"
#define NAMES_36 NAMES_32 ",%32,%33,%34,%35"
#define NAMES_40 NAMES_36 ",%36,%37,%38,%39"
#define NAMES_44 NAMES_40 ",%40,%41,%42,%43"
#define NAMES_48 NAMES_44 ",%44,%45,%46,%47"
#define NAMES_52 NAMES_48 ",%48,%49,%50,%51"
#define NAMES_56 NAMES_52 ",%52,%53,%54,%55"
#define NAMES_60 NAMES_56 ",%56,%57,%58,%59"
#define NAMES_64 NAMES_60 ",%60,%61,%62,%63"
#define NAMES_128 NAMES_64 \
    ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79" \
    ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95" \
    ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111" \
    ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define PRODUCT(shape, names, inputs, ...)                                                                \
    asm volatile("wgmma.mma_async.sync.aligned." shape ".f32.f16.f16 {" names "}, " inputs ", 1, 1, 1, 0;" \
                 : __VA_ARGS__                                                                            \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))

// d [64, N] += a [64, 16] (fp16 registers of the warp group) b [16, N] (shared memory, N swizzled rows).
template <int N, int SUMS>
__device__ __forceinline__ void product(float (&d)[SUMS], const u32 (&a)[4], u64 b) {
    static_assert(N % 8 == 0 && N >= 64 && N <= 128);
    if constexpr (N == 64) PRODUCT("m64n64k16", NAMES_32, "{%32,%33,%34,%35}, %36", OPERANDS_32(d, 0));
    if constexpr (N == 72)
        PRODUCT("m64n72k16", NAMES_36, "{%36,%37,%38,%39}, %40", OPERANDS_32(d, 0), OPERANDS_4(d, 32));
    if constexpr (N == 80)
        PRODUCT("m64n80k16", NAMES_40, "{%40,%41,%42,%43}, %44", OPERANDS_32(d, 0), OPERANDS_8(d, 32));
    if constexpr (N == 88)
        PRODUCT("m64n88k16", NAMES_44, "{%44,%45,%46,%47}, %48", OPERANDS_32(d, 0), OPERANDS_8(d, 32), OPERANDS_4(d, 40));
    if constexpr (N == 96)
        PRODUCT("m64n96k16", NAMES_48, "{%48,%49,%50,%51}, %52", OPERANDS_32(d, 0), OPERANDS_16(d, 32));
    if constexpr (N == 104)
        PRODUCT("m64n104k16", NAMES_52, "{%52,%53,%54,%55}, %56", OPERANDS_32(d, 0), OPERANDS_16(d, 32), OPERANDS_4(d, 48));
    if constexpr (N == 112)
        PRODUCT("m64n112k16", NAMES_56, "{%56,%57,%58,%59}, %60", OPERANDS_32(d, 0), OPERANDS_16(d, 32), OPERANDS_8(d, 48));
    if constexpr (N == 120)
        PRODUCT("m64n120k16", NAMES_60, "{%60,%61,%62,%63}, %64", OPERANDS_32(d, 0), OPERANDS_16(d, 32), OPERANDS_8(d, 48),
                OPERANDS_4(d, 56));
    if constexpr (N == 128) PRODUCT("m64n128k16", NAMES_64, "{%64,%65,%66,%67}, %68", OPERANDS_64(d, 0));
}

// d [64, 64] += a [64, 16] b [16, 64], both by swizzled_rows.
__device__ __forceinline__ void product_of_rows(float (&d)[32], u64 a, u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" NAMES_32 "}, %32, %33, 1, 1, 1, 0, 0;"
                 : OPERANDS_32(d, 0)
                 : "l"(a), "l"(b));
}

// d [64, 256] += a [64, 16] by swizzled_rows times b [16, 256] by swizzled_columns.
__device__ __forceinline__ void product_of_columns(float (&d)[128], u64 a, u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {" NAMES_128 "}, %128, %129, 1, 1, 1, 0, 1;"
                 : OPERANDS_64(d, 0), OPERANDS_64(d, 64)
                 : "l"(a), "l"(b));
}
