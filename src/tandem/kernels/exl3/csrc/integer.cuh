// One warp's part of an integer product: rows to signed bytes, tiles to the bytes of their codewords, and the matrix
// unit that adds them.
//
// Macros: BITS_A, BITS_B (1..8; a matrix has one of the two), ROWS (1, 2, 4, 8, 16: most pairs of a job),
// TILES (n-tiles of 16 columns a warp holds: 4 or 8), WARPS, COLUMN_WARPS (how many of them stand side by side in the
// outputs and share activations; the others divide k), DEPTH (steps in the ring), BLOCKS (a processor, at least).

#include "exl3.cuh"

#ifndef BITS_A
#define BITS_A 3
#endif
#ifndef BITS_B
#define BITS_B BITS_A
#endif
#ifndef ROWS
#define ROWS 1
#endif
#ifndef TILES
#define TILES 4
#endif
#ifndef WARPS
#define WARPS 8
#endif
#ifndef COLUMN_WARPS
#define COLUMN_WARPS 2
#endif
#ifndef DEPTH
#define DEPTH 2
#endif
#ifndef BLOCKS
#define BLOCKS 3
#endif
#define PASSES ((ROWS + 3) / 4)  // of four rows each
#define STEP 4                   // k-tiles that a warp works on at once, one for each lane of a quad
#define MOST_BITS (BITS_A > BITS_B ? BITS_A : BITS_B)

// Weights are A (16 outputs by 8 inputs, four bytes each), activations B (8 columns: two halves of four rows).
__device__ __forceinline__ void mma(int (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Powers of two that the compiler does not know for such.
__constant__ u32 power_of_two[16] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768};

// Bits 16 - OFFSET .. 31 - OFFSET of v. A left shift runs on the multiplier's pipe, which has room, as a product with a
// power of two; a mask could not.
template <int OFFSET>
__device__ __forceinline__ u32 window_at(u32 v) {
    if constexpr (OFFSET == 0) return v >> 16;
    else if constexpr (OFFSET == 8) return __byte_perm(v, 0, 0x4421);
    else if constexpr (OFFSET == 16) return v & 0xffffu;
    else return (v * power_of_two[OFFSET]) >> 16;
}

// A lane's 32 positions of a tile are BITS whole words of it: where a window begins is known to the compiler.
template <int BITS>
struct LaneBits {
    static constexpr int VECTOR = BITS % 4 == 0 ? 4 : BITS % 2 == 0 ? 2 : 1;  // words a load
    // Between the tiles of a step, so that the lanes of a warp read from different banks.
    static constexpr int PADDING = BITS / VECTOR * 8 % 32;
    static constexpr int PITCH = TILES * 8 * BITS + PADDING;  // 32-bit words of a k-tile in the ring
    u32 word[1 + BITS];                                       // the first one ends where the lane's own bits begin

    __device__ __forceinline__ void load(const u32* before, const u32* own) {
        word[0] = *before;
#pragma unroll
        for (int i = 0; i < BITS; i += VECTOR) {
            if constexpr (VECTOR == 4) {
                const uint4 v = *(const uint4*)(own + i);
                word[1 + i] = v.x; word[2 + i] = v.y; word[3 + i] = v.z; word[4 + i] = v.w;
            } else if constexpr (VECTOR == 2) {
                const uint2 v = *(const uint2*)(own + i);
                word[1 + i] = v.x; word[2 + i] = v.y;
            } else {
                word[1 + i] = own[i];
            }
        }
    }
    // The bytes of position P's codeword.
    template <int P>
    __device__ __forceinline__ u32 codeword() const {
        constexpr int begin = 16 + BITS * (P + 1), at = begin / 32, offset = begin % 32;
        u32 window;
        if constexpr (offset <= 16) window = window_at<offset>(word[at]);
        else if constexpr ((32 * at + 8) % BITS == 0)  // one of those across this border begins at a byte of its centre
            window = window_at<offset - 16>(__byte_perm(word[at + 1], word[at], 0x5432));
        else window = __funnelshift_l(word[at + 1], word[at], offset) >> 16;
        return window * 0x83DCD12Du;
    }
};

// K-tiles [first, end) of a job's rotated rows, by one warp -> two signed bytes a value. Column 2 pair + half of
// `columns` (0: high bytes, 1: low bytes) holds 16 bytes a k-tile: lane q of a quad finds its four inputs 2 q,
// 2 q + 1, 2 q + 8, 2 q + 9 side by side. Every block does this; who publishes adds up `sums` and notes `scales`.
__device__ __forceinline__ void quantize_rows(i8* columns, int stride, const float* rotated, const float* peaks,
                                              int pairs, int inputs, int first, int end, float* scales,
                                              int* sums, bool publish) {
    const int lane = threadIdx.x & 31, blocks = inputs / ROTATION, width = (end - first) * 16;
#pragma unroll 1
    for (int pair = 0; pair < pairs; pair++) {
        const float* row = rotated + (size_t)pair * inputs + first * 16;
        const float* of_row = peaks + (size_t)pair * blocks;
        float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (4 * lane < width) v = __ldcg((const float4*)(row + 4 * lane));
        float peak = 0.0f;
        for (int i = lane; i < blocks; i += 32) peak = fmaxf(peak, __ldcg(of_row + i));
        peak = __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(peak)));  // none is negative
        const float inverse = peak > 0.0f ? ACTIVATION_MAX / peak : 0.0f;
        u32 sum = 0;
        for (int at = 4 * lane; at < width; at += 128) {
            if (at >= 128) v = __ldcg((const float4*)(row + at));
            // The nearest integer is in the low bits of the sum with 1.5 * 2^23.
            const u32 a0 = __float_as_uint(__fadd_rn(__fmul_rn(v.x, inverse), 12582912.0f)),
                      a1 = __float_as_uint(__fadd_rn(__fmul_rn(v.y, inverse), 12582912.0f)),
                      a2 = __float_as_uint(__fadd_rn(__fmul_rn(v.z, inverse), 12582912.0f)),
                      a3 = __float_as_uint(__fadd_rn(__fmul_rn(v.w, inverse), 12582912.0f));
            sum += (a0 + a1 + a2 + a3) - 4 * 0x4b400000u;
            // Inputs j .. j + 3 of a tile, j = 0, 4, 8, 12: two for each of two neighbouring lanes.
            const int j = at & 15, to = (at & ~15) + 2 * (j & 7) + (j >> 3) * 2;
            const u32 low = __byte_perm(__byte_perm(a0, a1, 0x0040), __byte_perm(a2, a3, 0x0040), 0x5410);
            const u32 high = __byte_perm(__byte_perm(a0 + 128, a1 + 128, 0x0051),
                                         __byte_perm(a2 + 128, a3 + 128, 0x0051), 0x5410);
            i8* at_high = columns + (2 * pair) * stride + to;
            *(u16*)at_high = (u16)high;
            *(u16*)(at_high + 4) = (u16)(high >> 16);
            *(u16*)(at_high + stride) = (u16)low;
            *(u16*)(at_high + stride + 4) = (u16)(low >> 16);
        }
        if (publish) {
            sum = __reduce_add_sync(0xffffffffu, sum);
            if (lane == 0) {
                atomicAdd(&sums[pair], (int)sum);
                scales[pair] = peak / ACTIVATION_MAX;
            }
        }
    }
}

// The block waits until `count` has come to `enough`: what was written before is then visible past the first-level cache.
__device__ __forceinline__ void await_count(const int* count, int enough) {
    if (threadIdx.x == 0) {
        int found;
        do {
            asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(found) : "l"(count) : "memory");
        } while (found < enough);
    }
    __syncthreads();
}

// The warps that share activations wait for each other; `group`: which ones.
__device__ __forceinline__ void together(int group) {
    if constexpr (COLUMN_WARPS == 1) __syncwarp();
    else asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"(32 * COLUMN_WARPS) : "memory");
}

__device__ __forceinline__ void copy_16_bytes(u32* to, const u32* from, bool wanted) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %2, 0; @p cp.async.cg.shared.global [%0], [%1], 16;}" ::"r"(
            (u32)__cvta_generic_to_shared(to)),
        "l"(from), "r"((int)wanted)
        : "memory");
}

// The two weights of each output that a product of the matrix unit takes: P of 0, 2, 8, 10, 16, 18, 24, 26.
template <int P, int BITS>
__device__ __forceinline__ void multiply_inputs(int (&acc)[PASSES][TILES][4], const LaneBits<BITS> (&bits)[TILES],
                                                const u32 (&four)[PASSES]) {
    constexpr u32 byte = P & 2 ? 0x2222 : 0;
    u32 B[PASSES][2];
#pragma unroll
    for (int p = 0; p < PASSES; p++) {
        B[p][0] = __byte_perm(four[p], 0, byte);
        B[p][1] = __byte_perm(four[p], 0, byte + 0x1111);
    }
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        const u32 x0 = bits[i].template codeword<P>(), x1 = bits[i].template codeword<P + 1>(),
                  x4 = bits[i].template codeword<P + 4>(), x5 = bits[i].template codeword<P + 5>();
#pragma unroll
        for (int p = 0; p < PASSES; p++) mma(acc[p][i], x0, x4, x1, x5, B[p][0], B[p][1]);
    }
}

template <int Q, int BITS>
__device__ __forceinline__ void multiply_quarter(int (&acc)[PASSES][TILES][4], const LaneBits<BITS> (&bits)[TILES],
                                                 const uint4 (&sixteen)[PASSES]) {
    u32 four[PASSES];
#pragma unroll
    for (int p = 0; p < PASSES; p++)
        four[p] = Q == 0 ? sixteen[p].x : Q == 1 ? sixteen[p].y : Q == 2 ? sixteen[p].z : sixteen[p].w;
    multiply_inputs<8 * Q>(acc, bits, four);
    multiply_inputs<8 * Q + 2>(acc, bits, four);
}

// One warp's k-tiles [first, end), a multiple of STEP, times TILES n-tiles. In a step, lane q of a quad has the tile
// first + 4 step + q, of which quad r owns positions 32 r .. 32 r + 31: all inputs of outputs r and r + 8 (bits 0, 1, 3
// and 4 of a position: inputs 1, 8, 2 and 4; bit 2: output 8). An activation meets each of the four bytes of a
// codeword: B repeats it four times.
//
// Tiles travel through the warp's own ring in shared memory, DEPTH steps each, because registers as their destination
// would all be waited for together. The first are asked for before `prepare` puts the activations (`columns`, as
// above) in place.
template <int BITS, class Prepare>
__device__ __forceinline__ void multiply(int (&acc)[PASSES][TILES][4], const u32* matrix, u32* ring,
                                         const i8* columns, int stride, int first, int end, int n_tiles, int n_tile,
                                         const Prepare& prepare) {
    using Bits = LaneBits<BITS>;
    constexpr int WORDS = 8 * BITS, SLOT = STEP * Bits::PITCH;  // 32-bit words of a tile, of a step
    const int lane = threadIdx.x & 31, q = lane & 3, r = lane >> 2, steps = (end - first) / STEP;
    // Eight lanes fetch a k-tile.
    const u32* from = matrix + ((size_t)(first + (lane >> 3)) * n_tiles + n_tile) * WORDS + 4 * (lane & 7);
    u32* to = ring + (lane >> 3) * Bits::PITCH + 4 * (lane & 7);
    int filled = 0, used = 0;
    const auto fetch = [&](int step) {
#pragma unroll
        for (int i = 0; i < TILES * WORDS; i += 32) copy_16_bytes(to + filled + i, from + i, step < steps);
        from += (size_t)STEP * n_tiles * WORDS;
        filled = filled == (DEPTH - 1) * SLOT ? 0 : filled + SLOT;
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    for (int step = 0; step < DEPTH - 1; step++) fetch(step);
    prepare();

    const u32* own = ring + q * Bits::PITCH + r * BITS;
    const u32* before = own + (r ? -1 : WORDS - 1);
    // Columns past the last repeat it: their sums are dropped.
    const i8* column[PASSES];
#pragma unroll
    for (int p = 0; p < PASSES; p++) column[p] = columns + min(8 * p + r, 2 * ROWS - 1) * stride + 16 * q;
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
        asm volatile("cp.async.wait_group %0;" ::"n"(DEPTH - 2) : "memory");
        __syncwarp();
        fetch(step + DEPTH - 1);
        Bits bits[TILES];
#pragma unroll
        for (int i = 0; i < TILES; i++) bits[i].load(before + used + i * WORDS, own + used + i * WORDS);
        used = used == (DEPTH - 1) * SLOT ? 0 : used + SLOT;
        uint4 sixteen[PASSES];
#pragma unroll
        for (int p = 0; p < PASSES; p++) {
            sixteen[p] = *(const uint4*)column[p];
            column[p] += 16 * STEP;
        }
        multiply_quarter<0>(acc, bits, sixteen);
        multiply_quarter<1>(acc, bits, sixteen);
        multiply_quarter<2>(acc, bits, sixteen);
        multiply_quarter<3>(acc, bits, sixteen);
    }
}
