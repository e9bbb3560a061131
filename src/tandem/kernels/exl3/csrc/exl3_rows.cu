// EXL3 (MUL1) products of few rows: rotate -> integer product -> rotate back, the last in whoever reads it.
//
// A *pair* is one row meeting one matrix. Pairs of a matrix are consecutive and form a *job*; a dense linear
// is one job whose pairs are the rows, experts are one job each. A launch may hold several *groups* (gate and
// up, or two projections of one input): the same jobs over other matrices, with pairs of their own.
//
// Macros: BITS_A, BITS_B (1..8; a matrix has one of the two), ROWS (1, 2, 4, 8, 16: most pairs of a job),
// TILES (n-tiles of 16 columns a warp holds), WARPS, DEPTH (loads in flight), BLOCKS (a processor, at least),
// SHIFTED_LEFT (see window_at).

#include "exl3.cuh"
#include "../../linear/csrc/dense_row.cuh"

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
#define DEPTH 2
#endif
#ifndef BLOCKS
#define BLOCKS 2
#endif
#ifndef SHIFTED_LEFT
#define SHIFTED_LEFT 6
#endif
#define PASSES ((ROWS + 3) / 4)  // of four rows each

// x fp32 [rows, inputs] -> rotated fp32 [groups, pairs, inputs], peaks fp32 [groups, pairs, inputs / 128].
// suh fp16 [groups, matrices, inputs]. Grid: (pairs, ceil(inputs / 128 / warps of a block), groups).
extern "C" __global__ void rotate_pairs(const float* x, const __half* suh,
                                        const int* pair_row, const int* pair_matrix,
                                        const int* pair_count, float* rotated,
                                        float* peaks, int inputs, int matrices) {
    let_next_begin();
    wait_for_earlier();
    const int pair = blockIdx.x, block = blockIdx.y * (blockDim.x >> 5) + (threadIdx.x >> 5);
    if (pair >= *pair_count || block * ROTATION >= inputs) return;
    const int at = block * ROTATION + 4 * (threadIdx.x & 31);
    const float4 loaded = *(const float4*)(x + (size_t)pair_row[pair] * inputs + at);
    float v[4] = {loaded.x, loaded.y, loaded.z, loaded.w};
    const size_t out = (size_t)blockIdx.z * gridDim.x + pair;
    store_rotated(v, suh + ((size_t)blockIdx.z * matrices + pair_matrix[pair]) * inputs, at, rotated + out * inputs,
                  peaks + out * (inputs / ROTATION));
}

// Weights are A (16 outputs by 8 inputs, four bytes each), activations B (8 columns: two halves of four rows).
__device__ __forceinline__ void mma(int (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Bits 16 - OFFSET .. 31 - OFFSET of v. A left shift can run on the multiplier's pipe, which has room; a mask
// cannot: SHIFTED_LEFT says for how many of a tile's windows to prefer that.
template <int OFFSET, bool LEFT>
__device__ __forceinline__ u32 window_at(u32 v) {
    if constexpr (OFFSET == 0) return v >> 16;
    else if constexpr (OFFSET == 8) return __byte_perm(v, 0, 0x4421);
    else if constexpr (OFFSET == 16) return v & 0xffffu;
    else if constexpr (!LEFT) return (v >> (16 - OFFSET)) & 0xffffu;
    else {
        u32 shifted;
        asm("shl.b32 %0, %1, %2;" : "=r"(shifted) : "r"(v), "n"(OFFSET));
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
    __device__ __forceinline__ u32 codeword() const {
        constexpr int at = P * BITS;
        constexpr bool left = P < SHIFTED_LEFT;
        u32 window;
        if constexpr (at <= 16) window = window_at<at, left>(head);
        else if constexpr (at >= CENTRE && at <= CENTRE + 16) window = window_at<at - CENTRE, left>(centre);
        else if constexpr (at >= 32 && at <= 48) window = window_at<at - 32, left>(next);
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

// One warp's k-tiles [first, end) times TILES n-tiles. Lane t of a warp owns positions 8 t .. 8 t + 7 of a tile: inputs
// 2 q, 2 q + 1, 2 q + 8, 2 q + 9 of outputs r (first four) and r + 8. An activation meets each of the four bytes of
// a codeword: B repeats it four times. The first tiles are asked for before `prepare` puts the activations
// (`columns`, as above) in place.
template <int BITS, class Prepare>
__device__ __forceinline__ void multiply(int (&acc)[PASSES][TILES][4], const u32* matrix, const i8* columns,
                                         int stride, int first, int end, int n_tiles, int n_tile,
                                         const Prepare& prepare) {
    constexpr int WORDS = 8 * BITS;  // 32-bit words of a tile
    constexpr int LANE_WORDS = LaneBits<BITS>::WORDS;
    const int lane = threadIdx.x & 31, q = lane & 3, r = lane >> 2;
    // The first window begins at bit 8 t BITS + BITS - 16 of the ring.
    const int start = 8 * lane * BITS + BITS - 16, shift = start & 31;
    const int w0 = ((start >> 5) + WORDS) % WORDS, w1 = (w0 + 1) % WORDS, w2 = (w0 + 2) % WORDS;
    const size_t step = (size_t)n_tiles * WORDS;
    const u32* p0 = matrix + ((size_t)first * n_tiles + n_tile) * WORDS + w0;
    const u32* p1 = p0 + (w1 - w0);
    const u32* p2 = p0 + (w2 - w0);
    const int steps = end - first;

    u32 next[DEPTH][TILES][LANE_WORDS];
    const auto load = [&](u32 (&to)[TILES][LANE_WORDS]) {
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            to[i][0] = __ldg(p0 + i * WORDS);
            to[i][1] = __ldg(p1 + i * WORDS);
            if constexpr (LANE_WORDS == 3) to[i][2] = __ldg(p2 + i * WORDS);
        }
        p0 += step;
        p1 += step;
        if constexpr (LANE_WORDS == 3) p2 += step;
    };
#pragma unroll
    for (int d = 0; d < DEPTH; d++)
        if (d < steps) load(next[d]);
    prepare();

    // Columns past the last repeat it: their sums are dropped.
    const i8* column[PASSES];
#pragma unroll
    for (int p = 0; p < PASSES; p++) column[p] = columns + min(8 * p + r, 2 * ROWS - 1) * stride + 4 * q;
    const auto compute = [&](u32 (&from)[TILES][LANE_WORDS], bool more) {
        LaneBits<BITS> bits[TILES];
#pragma unroll
        for (int i = 0; i < TILES; i++) bits[i].align(from[i], shift);
        if (more) load(from);
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
            const u32 x0 = bits[i].template codeword<0>(), x1 = bits[i].template codeword<1>(),
                      x4 = bits[i].template codeword<4>(), x5 = bits[i].template codeword<5>(),
                      x2 = bits[i].template codeword<2>(), x3 = bits[i].template codeword<3>(),
                      x6 = bits[i].template codeword<6>(), x7 = bits[i].template codeword<7>();
#pragma unroll
            for (int p = 0; p < PASSES; p++) {
                mma(acc[p][i], x0, x4, x1, x5, B[p][0], B[p][1]);
                mma(acc[p][i], x2, x6, x3, x7, B[p][2], B[p][3]);
            }
        }
    };
    int done = 0;
    for (; done + DEPTH <= steps; done += DEPTH) {
#pragma unroll
        for (int d = 0; d < DEPTH; d++) compute(next[d], done + d + DEPTH < steps);
    }
#pragma unroll
    for (int d = 0; d < DEPTH; d++)
        if (done + d < steps) compute(next[d], false);
}

// What the last block to reach an output block of a gate and up product does with it: nothing if rotated is null.
struct Gated {
    const __half* svh;       // fp16 [2, matrices, width]
    const __half* down_suh;  // fp16 [matrices, width]
    float* rotated;          // fp32 [pairs, width]
    float* peaks;            // fp32 [pairs, width / 128]
    float limit;
};

// Gate (group 0) and up (group 1) of 128 outputs of a pair -> the down projection's input: silu(min(gate, limit))
// * clamp(up, +-limit), times suh, rotated.
__device__ __forceinline__ void finish_gated(const Gated& to, const Partial& from, int pair, int pair_capacity,
                                             int matrix, int matrices, int width, int at) {
    float g[4], u[4];
    finish_block(g, from, pair, to.svh + (size_t)matrix * width, at);
    finish_block(u, from, pair_capacity + pair, to.svh + ((size_t)matrices + matrix) * width, at);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float a = fminf(g[i], to.limit), b = fminf(fmaxf(u[i], -to.limit), to.limit);
        g[i] = a / (1.0f + expf(-a)) * b;
    }
    store_rotated(g, to.down_suh + (size_t)matrix * width, at, to.rotated + (size_t)pair * width,
                  to.peaks + (size_t)pair * (width / ROTATION));
}

// trellis u64 [groups, matrices]: address of each matrix's tiles [inputs/16, outputs/16, 8 K] u32; bits and
// outputs int32 [groups, matrices]. job_start [jobs + 1] in pairs, job_matrix [jobs], the same for all groups.
// fixed_jobs: no earlier kernel writes them, so that weights can be asked for before its end.
// -> partial int32 [splits, groups * pairs, 2, pitch], sums [splits, groups * pairs], scale [groups * pairs].
// Grid: (dense blocks + widest outputs / (16 TILES), splits, groups * most jobs); a split's k-tiles are divided
// among the warps. The first `dense_blocks` in x multiply a small fp16 matrix that has nothing to do with the rest
// but its place in the step (dense_row.cuh; dense_rows rows of x).
//
// Gated (gated_rotated not null; TILES at most 8): the last block to bring its part of 128 gate and up outputs
// makes the down projection's input of them. arrivals int32 [jobs, outputs / 128], zero before and after.
// Dynamic shared memory: totals int32 [2 ROWS, 16 TILES], then 2 ROWS columns of activations.
extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS)
    product_rows(const unsigned long long* trellis, const int* bits,
                 const int* outputs_of, const float* rotated,
                 const float* peaks, const int* job_start,
                 const int* job_matrix, const int* job_count, int* partial,
                 int* sums, float* scale, int inputs, int pitch, int matrices,
                 int pair_capacity, int groups, int fixed_jobs,
                 const __half* dense_weight, const float* dense_x, float* dense_y, int dense_blocks,
                 int dense_outputs, int dense_inputs, int dense_rows,
                 const __half* gated_svh, const __half* gated_suh, float* gated_rotated, float* gated_peaks,
                 int* arrivals, float limit) {
    constexpr int OUTPUTS = TILES * 16;
    extern __shared__ __align__(16) int totals[];
    __shared__ int row_sums[ROWS];
    const int warp = threadIdx.x >> 5;
    let_next_begin();
    if (blockIdx.x < dense_blocks) {
        if (blockIdx.z) return;
        const int n = (blockIdx.x * gridDim.y + blockIdx.y) * WARPS + warp;
        dense_row<ROWS>(dense_weight, dense_x, dense_y, n, dense_outputs, dense_inputs, dense_rows);
        return;
    }
    const int block = blockIdx.x - dense_blocks;
    for (int i = threadIdx.x; i < 2 * ROWS * OUTPUTS; i += WARPS * 32) totals[i] = 0;
    if (threadIdx.x < ROWS) row_sums[threadIdx.x] = 0;
    __syncthreads();
    if (!fixed_jobs) wait_for_earlier();
    // The last job comes first: a shared expert has more bits than the others.
    const int most_jobs = gridDim.z / groups, group = blockIdx.z / most_jobs;
    const int job = *job_count - 1 - blockIdx.z % most_jobs;
    if (job < 0) return;
    const int matrix = group * matrices + job_matrix[job];
    const int outputs = outputs_of[matrix];
    if (block * OUTPUTS >= outputs) return;
    const int k_tiles = inputs / 16, per_split = (k_tiles + gridDim.y - 1) / gridDim.y;
    const int per_warp = (per_split + WARPS - 1) / WARPS, stride = WARPS * per_warp * 16 + 16;  // + 16: other banks
    const int end_split = min(k_tiles, (int)(blockIdx.y + 1) * per_split);
    const int first = min(end_split, (int)blockIdx.y * per_split + warp * per_warp);
    const int end = min(end_split, first + per_warp);
    const int pair = group * pair_capacity + job_start[job];
    const int pairs = min(job_start[job + 1] - job_start[job], ROWS);
    const size_t of_split = (size_t)blockIdx.y * groups * pair_capacity + pair;
    // Who publishes scale and sums: of a gated launch every block, as the last one to arrive needs them.
    const bool publishes = block == 0 || gated_rotated;
    i8* columns = (i8*)(totals + 2 * ROWS * OUTPUTS) + warp * per_warp * 16;

    const auto prepare = [&] {
        if (fixed_jobs) wait_for_earlier();
        quantize_rows(columns, stride, rotated + (size_t)pair * inputs, peaks + (size_t)pair * (inputs / ROTATION),
                      pairs, inputs, first, end, scale + pair, row_sums, publishes);
    };
    int acc[PASSES][TILES][4];
#pragma unroll
    for (int p = 0; p < PASSES; p++)
#pragma unroll
        for (int i = 0; i < TILES; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) acc[p][i][j] = 0;
    const u32* tiles = (const u32*)trellis[matrix];
    if (BITS_A == BITS_B || bits[matrix] == BITS_A)
        multiply<BITS_A>(acc, tiles, columns, stride, first, end, outputs / 16, block * TILES, prepare);
    else
        multiply<BITS_B>(acc, tiles, columns, stride, first, end, outputs / 16, block * TILES, prepare);

    // Sums over the warps: integers, so any order gives the same. Lane q of a quad has row 4 p + q; rows past
    // `pairs` held stale bytes and are dropped.
    const int q = threadIdx.x & 3, r = (threadIdx.x & 31) >> 2;
#pragma unroll
    for (int p = 0; p < PASSES; p++) {
        const int row = 4 * p + q;
        if (row >= pairs) continue;
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            int* at = totals + row * 2 * OUTPUTS + i * 16 + r;
            atomicAdd(at, acc[p][i][0]);
            atomicAdd(at + OUTPUTS, acc[p][i][1]);
            atomicAdd(at + 8, acc[p][i][2]);
            atomicAdd(at + OUTPUTS + 8, acc[p][i][3]);
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < pairs * 2 * OUTPUTS; i += WARPS * 32)
        partial[(of_split * 2 + i / OUTPUTS) * pitch + block * OUTPUTS + i % OUTPUTS] = totals[i];
    if (publishes && threadIdx.x < pairs) sums[of_split + threadIdx.x] = row_sums[threadIdx.x];
    if (!gated_rotated) return;

    __shared__ bool last;
    __syncthreads();
    if (threadIdx.x == 0) {
        int* arrived = arrivals + job * (outputs / ROTATION) + block * OUTPUTS / ROTATION;
        __threadfence();
        last = atomicAdd(arrived, 1) == groups * (int)gridDim.y * (ROTATION / OUTPUTS) - 1;
        __threadfence();
        if (last) *arrived = 0;
    }
    __syncthreads();
    if (!last) return;
    const Gated to = {gated_svh, gated_suh, gated_rotated, gated_peaks, limit};
    const Partial from = {partial, sums, scale, (int)gridDim.y, groups * pair_capacity, pitch};
    for (int i = warp; i < pairs; i += WARPS)
        finish_gated(to, from, job_start[job] + i, pair_capacity, job_matrix[job], matrices, outputs,
                     block * OUTPUTS / ROTATION * ROTATION + 4 * (threadIdx.x & 31));
}

// One group's pairs -> y fp32 [pairs, outputs]. Grid: (pairs, ceil(outputs / 128 / warps of a block)).
extern "C" __global__ void finish_rows(const int* values, const int* sums,
                                       const float* scale, const __half* svh,
                                       const int* pair_matrix, const int* pair_count,
                                       float* y, int outputs, int pitch, int splits, int pairs,
                                       int first_pair) {
    let_next_begin();
    wait_for_earlier();
    const int pair = blockIdx.x, block = blockIdx.y * (blockDim.x >> 5) + (threadIdx.x >> 5);
    if (pair >= *pair_count || block * ROTATION >= outputs) return;
    const int at = block * ROTATION + 4 * (threadIdx.x & 31);
    const Partial partial = {values, sums, scale, splits, pairs, pitch};
    float v[4];
    finish_block(v, partial, first_pair + pair, svh + (size_t)pair_matrix[pair] * outputs, at);
    *(float4*)(y + (size_t)pair * outputs + at) = make_float4(v[0], v[1], v[2], v[3]);
}

// The same for products that are not gated. Grid: (pairs, ceil(width / 128 / warps of a block)).
extern "C" __global__ void finish_gate_up(const int* values, const int* sums, const float* scale, const __half* svh,
                                          const __half* down_suh, const int* pair_matrix, const int* pair_count,
                                          float* rotated, float* peaks, int width, int pitch, int matrices,
                                          int splits, float limit) {
    let_next_begin();
    wait_for_earlier();
    const int pair = blockIdx.x, block = blockIdx.y * (blockDim.x >> 5) + (threadIdx.x >> 5);
    if (pair >= *pair_count || block * ROTATION >= width) return;
    const Gated to = {svh, down_suh, rotated, peaks, limit};
    const Partial from = {values, sums, scale, splits, 2 * (int)gridDim.x, pitch};
    finish_gated(to, from, pair, gridDim.x, pair_matrix[pair], matrices, width,
                 block * ROTATION + 4 * (threadIdx.x & 31));
}
