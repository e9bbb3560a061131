// One warp's part of an integer product: rows to signed bytes, tiles to the bytes of their codewords, and the matrix
// unit that adds them.
//
// Macros: BITS_A, BITS_B (1..8; a matrix has one of the two), ROWS (1, 2, 4, 8, 16: most pairs of a job),
// TILES (n-tiles of 16 columns a warp holds), WARPS, DEPTH (steps of TILES tiles in the ring), BLOCKS (a processor,
// at least), SHIFTED_LEFT (see window_at).

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
#ifndef DEPTH
#define DEPTH 4
#endif
#ifndef BLOCKS
#define BLOCKS 2
#endif
#ifndef SHIFTED_LEFT
#define SHIFTED_LEFT 6
#endif
#define PASSES ((ROWS + 3) / 4)  // of four rows each

// Weights are A (16 outputs by 8 inputs, four bytes each), activations B (8 columns: two halves of four rows).
__device__ __forceinline__ void mma(int (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Bits 16 - OFFSET .. 31 - OFFSET of v. A left shift can run on the multiplier's pipe, which has room, as a product
// with a power of two that the compiler does not know for one (`one`); a mask cannot. SHIFTED_LEFT says for how many
// of a tile's windows to do that.
template <int OFFSET, bool LEFT>
__device__ __forceinline__ u32 window_at(u32 v, u32 one) {
    if constexpr (OFFSET == 0) return v >> 16;
    else if constexpr (OFFSET == 8) return __byte_perm(v, 0, 0x4421);
    else if constexpr (OFFSET == 16) return v & 0xffffu;
    else if constexpr (!LEFT) return (v >> (16 - OFFSET)) & 0xffffu;
    else {
        u32 power, shifted;
        asm("shl.b32 %0, %1, %2;" : "=r"(power) : "r"(one), "n"(OFFSET));
        asm("mul.lo.u32 %0, %1, %2;" : "=r"(shifted) : "r"(v), "r"(power));
        return shifted >> 16;
    }
}

// A lane's bits of a tile: eight windows of 16 bits, BITS apart.
template <int BITS>
struct LaneBits {
    static constexpr int SPAN = 7 * BITS + 16;
    static constexpr int WORDS = BITS >= 5 ? 3 : 2;  // they may begin anywhere in the first
    // Where the word in the middle begins, so that few windows lie across two words.
    static constexpr int CENTRE = BITS >= 5 ? (16 / BITS + 1) * BITS : SPAN - 32;
    u32 head, centre, next, last;  // from bit 0, CENTRE, 32, 64

    __device__ __forceinline__ void align(const u32 (&w)[WORDS], int shift) {
        head = __funnelshift_l(w[1], w[0], shift);
        if constexpr (WORDS == 2) {
            if constexpr (CENTRE > 0) centre = __funnelshift_lc(w[1], w[0], shift + CENTRE);  // at most 32
        } else {
            next = __funnelshift_l(w[2], w[1], shift);
            centre = __funnelshift_l(next, head, CENTRE);
            if constexpr (SPAN > 64) last = w[2] << shift;
        }
    }
    // The bytes of position P's codeword.
    template <int P>
    __device__ __forceinline__ u32 codeword(u32 one) const {
        constexpr int at = P * BITS;
        constexpr bool left = P < SHIFTED_LEFT;
        u32 window;
        if constexpr (at <= 16) window = window_at<at, left>(head, one);
        else if constexpr (at >= CENTRE && at <= CENTRE + 16) window = window_at<at - CENTRE, left>(centre, one);
        else if constexpr (at >= 32 && at <= 48) window = window_at<at - 32, left>(next, one);
        else window = __funnelshift_l(last, next, at - 32) >> 16;
        return window * 0x83DCD12Du;
    }
};

// The warp's own k-tiles [first, end) of a job's rotated rows -> two signed bytes a value. Column 2 pair + half of
// `columns` (0: high bytes, 1: low bytes) holds 16 bytes a k-tile: lane q of a quad finds its four inputs 2 q,
// 2 q + 1, 2 q + 8, 2 q + 9 side by side. Every block does this; the first of a launch publishes scale and sums.
__device__ __forceinline__ void quantize_rows(i8* columns, int stride, const float* rotated, const float* peaks,
                                              int pairs, int inputs, int first, int end, float* scale_out,
                                              int* totals, bool publish) {
    const int lane = threadIdx.x & 31, blocks = inputs / ROTATION, width = (end - first) * 16;
#pragma unroll 1
    for (int pair = 0; pair < pairs; pair++) {
        const float* row = rotated + (size_t)pair * inputs + first * 16;
        const float* of_row = peaks + (size_t)pair * blocks;
        float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (4 * lane < width) v = *(const float4*)(row + 4 * lane);
        float peak = 0.0f;
        for (int i = lane; i < blocks; i += 32) peak = fmaxf(peak, of_row[i]);
        peak = warp_max(peak);
        const float inverse = peak > 0.0f ? ACTIVATION_MAX / peak : 0.0f;
        int sum = 0;
        for (int at = 4 * lane; at < width; at += 128) {
            if (at >= 128) v = *(const float4*)(row + at);
            const int a[4] = {__float2int_rn(v.x * inverse), __float2int_rn(v.y * inverse),
                              __float2int_rn(v.z * inverse), __float2int_rn(v.w * inverse)};
            // Inputs j .. j + 3 of a tile, j = 0, 4, 8, 12: two for each of two neighbouring lanes.
            const int j = at & 15, to = (at & ~15) + 2 * (j & 7) + (j >> 3) * 2;
            u32 high = 0, low = 0;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                high |= (u32)(((a[i] + 128) >> 8) & 255) << (8 * i);
                low |= (u32)(a[i] & 255) << (8 * i);
                sum += a[i];
            }
            i8* at_high = columns + (2 * pair) * stride + to;
            *(u16*)at_high = (u16)high;
            *(u16*)(at_high + 4) = (u16)(high >> 16);
            *(u16*)(at_high + stride) = (u16)low;
            *(u16*)(at_high + stride + 4) = (u16)(low >> 16);
        }
        if (publish) {
            sum = warp_sum(sum);
            if (lane == 0) {
                atomicAdd(&totals[pair], sum);
                scale_out[pair] = peak / ACTIVATION_MAX;
            }
        }
    }
    __syncwarp();
}

__device__ __forceinline__ void copy_16_bytes(u32* to, const u32* from, bool wanted) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %2, 0; @p cp.async.cg.shared.global [%0], [%1], 16;}" ::"r"(
            (u32)__cvta_generic_to_shared(to)),
        "l"(from), "r"((int)wanted)
        : "memory");
}

// One warp's k-tiles [first, end) times TILES n-tiles. Lane t of a warp owns positions 8 t .. 8 t + 7 of a tile: inputs
// 2 q, 2 q + 1, 2 q + 8, 2 q + 9 of outputs r (first four) and r + 8. An activation meets each of the four bytes of
// a codeword: B repeats it four times.
//
// Tiles travel through the warp's own ring in shared memory, DEPTH steps of TILES tiles each, because registers as
// their destination would all be waited for together. The first are asked for before `prepare` puts the activations
// (`columns`, as above) in place.
template <int BITS, class Prepare>
__device__ __forceinline__ void multiply(int (&acc)[PASSES][TILES][4], const u32* matrix, u32* ring,
                                         const i8* columns, int stride, int first, int end, int n_tiles, int n_tile,
                                         const Prepare& prepare) {
    constexpr int WORDS = 8 * BITS, STEP = TILES * WORDS;  // 32-bit words of a tile, of a step
    constexpr int LANE_WORDS = LaneBits<BITS>::WORDS;
    const int lane = threadIdx.x & 31, q = lane & 3, r = lane >> 2, steps = end - first;
    const u32* from = matrix + ((size_t)first * n_tiles + n_tile) * WORDS + 4 * lane;
    u32* to = ring + 4 * lane;
    const auto fetch = [&](int step) {
        u32* slot = to + step % DEPTH * STEP;
#pragma unroll
        for (int i = 0; i < STEP; i += 128)
            copy_16_bytes(slot + i, from + i, step < steps && (i + 128 <= STEP || i + 4 * lane < STEP));
        from += (size_t)n_tiles * WORDS;
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    for (int step = 0; step < DEPTH - 1; step++) fetch(step);
    prepare();

    const u32 one = n_tiles > 0;
    // The first window begins at bit 8 t BITS + BITS - 16 of the tile's ring.
    const int start = 8 * lane * BITS + BITS - 16, shift = start & 31;
    const u32* word[LANE_WORDS];
#pragma unroll
    for (int i = 0; i < LANE_WORDS; i++) word[i] = ring + ((start >> 5) + i + WORDS) % WORDS;
    // Columns past the last repeat it: their sums are dropped.
    const i8* column[PASSES];
#pragma unroll
    for (int p = 0; p < PASSES; p++) column[p] = columns + min(8 * p + r, 2 * ROWS - 1) * stride + 4 * q;
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
        asm volatile("cp.async.wait_group %0;" ::"n"(DEPTH - 2) : "memory");
        __syncwarp();
        fetch(step + DEPTH - 1);
        const int slot = step % DEPTH * STEP;
        LaneBits<BITS> bits[TILES];
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            u32 w[LANE_WORDS];
#pragma unroll
            for (int j = 0; j < LANE_WORDS; j++) w[j] = word[j][slot + i * WORDS];
            bits[i].align(w, shift);
        }
        u32 B[PASSES][4];
#pragma unroll
        for (int p = 0; p < PASSES; p++) {
            const u32 four = *(const u32*)column[p];
            B[p][0] = __byte_perm(four, 0, 0x0000);
            B[p][1] = __byte_perm(four, 0, 0x1111);
            B[p][2] = __byte_perm(four, 0, 0x2222);
            B[p][3] = __byte_perm(four, 0, 0x3333);
            column[p] += 16;
        }
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            const u32 x0 = bits[i].template codeword<0>(one), x1 = bits[i].template codeword<1>(one),
                      x4 = bits[i].template codeword<4>(one), x5 = bits[i].template codeword<5>(one),
                      x2 = bits[i].template codeword<2>(one), x3 = bits[i].template codeword<3>(one),
                      x6 = bits[i].template codeword<6>(one), x7 = bits[i].template codeword<7>(one);
#pragma unroll
            for (int p = 0; p < PASSES; p++) {
                mma(acc[p][i], x0, x4, x1, x5, B[p][0], B[p][1]);
                mma(acc[p][i], x2, x6, x3, x7, B[p][2], B[p][3]);
            }
        }
    }
}
