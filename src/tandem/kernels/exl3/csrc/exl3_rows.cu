// EXL3 (MUL1) products of few rows: rotate -> integer product -> rotate back, the last in whoever reads it.
//
// A *pair* is one row meeting one matrix. Pairs of a matrix are consecutive and form a *job*; a dense linear
// is one job whose pairs are the rows, experts are one job each. A launch may hold several *groups* (gate and
// up, or two projections of one input): the same jobs over other matrices, with pairs of their own.
//
// Macros: those of integer.cuh.

#include "integer.cuh"
#include "../../hyper_connection/csrc/coefficients.cuh"
#include "../../linear/csrc/dense_row.cuh"

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
    const float4 own = factors(suh + ((size_t)blockIdx.z * matrices + pair_matrix[pair]) * inputs + at);
    const float4 loaded = *(const float4*)(x + (size_t)pair_row[pair] * inputs + at);
    float v[4] = {loaded.x, loaded.y, loaded.z, loaded.w};
    const size_t out = (size_t)blockIdx.z * gridDim.x + pair;
    store_rotated(v, own, at, rotated + out * inputs, peaks + out * (inputs / ROTATION));
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
    const float4 suh = factors(to.down_suh + (size_t)matrix * width + at);
    float g[4], u[4];
    finish_block(g, from, pair, to.svh + (size_t)matrix * width, at);
    finish_block(u, from, pair_capacity + pair, to.svh + ((size_t)matrices + matrix) * width, at);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float a = fminf(g[i], to.limit), b = fminf(fmaxf(u[i], -to.limit), to.limit);
        g[i] = a / (1.0f + expf(-a)) * b;
    }
    store_rotated(g, suh, at, to.rotated + (size_t)pair * width, to.peaks + (size_t)pair * (width / ROTATION));
}

// trellis u64 [groups, matrices]: address of each matrix's tiles [inputs/16, outputs/16, 8 K] u32; bits and
// outputs int32 [groups, matrices]. job_start [jobs + 1] in pairs, job_matrix [jobs], the same for all groups.
// fixed_jobs: no kernel writes them that may still run when this one begins, so that weights can be asked for before
// the end of the one before. For that, a product whose jobs are not fixed lets the next kernel begin only when
// they are there.
// -> partial int32 [splits, groups * pairs, 2, pitch], sums [splits, groups * pairs], scale [groups * pairs].
// Grid: (blocks beside + widest outputs / (16 TILES COLUMN_WARPS), splits, groups * most jobs); a split's k-tiles are
// divided among the groups of warps. The first `beside` blocks in x have nothing to do with the rest but their place in the step: they
// multiply a small fp16 matrix (dense_row.cuh) and, the last of them, make a site's coefficients for dense_rows rows
// (site_partial null: not wanted).
//
// Gated (gated_rotated not null; at most 128 outputs a block): the last block to bring its part of 128 gate and up outputs
// makes the down projection's input of them. arrivals int32 [jobs, outputs / 128], zero before and after.
// gated_ready (or null) int32 [1 + jobs], zero before: behind the first, how many blocks of 128 inputs of a job are there.
// awaited (or null): that of the launch before this one, which may still be running; zero afterwards.
// Dynamic shared memory: totals int32 [2 ROWS, 16 TILES COLUMN_WARPS], 2 ROWS columns of activations, a ring for each warp.
extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS)
    product_rows(const unsigned long long* trellis, const int* bits,
                 const int* outputs_of, const float* rotated,
                 const float* peaks, const int* job_start,
                 const int* job_matrix, const int* job_count, int* partial,
                 int* sums, float* scale, int inputs, int pitch, int matrices,
                 int pair_capacity, int groups, int fixed_jobs,
                 int beside, const __half* dense_weight, const float* dense_x, float* dense_y, int dense_outputs,
                 int dense_inputs, int dense_rows, const float* site_partial, const float* site_base,
                 const float* site_scale, float* coefficients, int site_blocks, int iterations, float eps,
                 float norm_eps,
                 const __half* gated_svh, const __half* gated_suh, float* gated_rotated, float* gated_peaks,
                 int* arrivals, float limit, int* gated_ready, int* awaited) {
    constexpr int OUTPUTS = TILES * 16 * COLUMN_WARPS, K_WARPS = WARPS / COLUMN_WARPS;
    constexpr int RING_WORDS = DEPTH * STEP * (TILES * 8 * MOST_BITS + 24);  // 24: most padding
    extern __shared__ __align__(16) int totals[];
    __shared__ int row_sums[ROWS];
    __shared__ float row_scales[ROWS];
    const int warp = threadIdx.x >> 5;
    if (fixed_jobs || blockIdx.x < beside) let_next_begin();
    if (blockIdx.x < beside) {
        if (blockIdx.z) return;
        if (site_partial && blockIdx.x == beside - 1) {
            if (blockIdx.y) return;
            wait_for_earlier();
            make_coefficients({site_partial, site_base, site_scale, coefficients, dense_rows, site_blocks, iterations,
                               eps, norm_eps});
            return;
        }
        const int n = (blockIdx.x * gridDim.y + blockIdx.y) * WARPS + warp;
        dense_row<ROWS>(dense_weight, dense_x, dense_y, n, dense_outputs, dense_inputs, dense_rows);
        return;
    }
    const int block = blockIdx.x - beside;
    for (int i = threadIdx.x; i < 2 * ROWS * OUTPUTS; i += WARPS * 32) totals[i] = 0;
    if (threadIdx.x < ROWS) row_sums[threadIdx.x] = 0;
    __syncthreads();
    // The last job comes first: a shared expert has more bits than the others.
    const int most_jobs = gridDim.z / groups, group = blockIdx.z / most_jobs;
    const int job = most_jobs - 1 - blockIdx.z % most_jobs;
    if (!fixed_jobs) {
        const int entry = threadIdx.x * 32;  // of the tables that the wait would otherwise be followed by
        if (entry < groups * matrices) {
            asm volatile("prefetch.global.L2 [%0];" ::"l"(trellis + entry));
            asm volatile("prefetch.global.L2 [%0];" ::"l"(trellis + min(entry + 16, groups * matrices - 1)));
            asm volatile("prefetch.global.L2 [%0];" ::"l"(bits + entry));
            asm volatile("prefetch.global.L2 [%0];" ::"l"(outputs_of + entry));
        }
        wait_for_earlier();
        let_next_begin();
    }
    // Past the first-level cache, which may hold what was there before.
    const int jobs = __ldcg(job_count), matrix_of_job = __ldcg(job_matrix + job);
    const int first_pair = __ldcg(job_start + job), end_pair = __ldcg(job_start + job + 1);
    if (job >= jobs) return;
    const int matrix = group * matrices + matrix_of_job;
    const int outputs = outputs_of[matrix];
    if (block * OUTPUTS >= outputs) return;
    const int k_tiles = inputs / 16, per_split = STEP * ((k_tiles + STEP * gridDim.y - 1) / (STEP * gridDim.y));
    const int per_group = STEP * ((per_split + STEP * K_WARPS - 1) / (STEP * K_WARPS));
    const int stride = K_WARPS * per_group * 16 + 64;  // + 64: other banks
    const int k_group = warp / COLUMN_WARPS, column = warp % COLUMN_WARPS;
    const int end_split = min(k_tiles, (int)(blockIdx.y + 1) * per_split);
    const int first = min(end_split, (int)blockIdx.y * per_split + k_group * per_group);
    const int end = min(end_split, first + per_group), n_tile = (block * COLUMN_WARPS + column) * TILES;
    const int pair = group * pair_capacity + first_pair, pairs = min(end_pair - first_pair, ROWS);
    const size_t of_split = (size_t)blockIdx.y * groups * pair_capacity + pair;
    // Who publishes scale and sums: of a gated launch every block, as the last one to arrive needs them.
    const bool publishes = block == 0 || gated_rotated;
    i8* columns = (i8*)(totals + 2 * ROWS * OUTPUTS) + k_group * per_group * 16;
    u32* ring = (u32*)((i8*)(totals + 2 * ROWS * OUTPUTS) + 2 * ROWS * stride) + warp * RING_WORDS;

    const auto prepare = [&] {
        if (awaited) await_count(awaited + 1 + job, inputs / ROTATION);
        else if (fixed_jobs) wait_for_earlier();
        const int part = (end - first + COLUMN_WARPS - 1) / COLUMN_WARPS, from = min(end, first + column * part);
        quantize_rows(columns + (from - first) * 16, stride, rotated + (size_t)pair * inputs,
                      peaks + (size_t)pair * (inputs / ROTATION), pairs, inputs, from, min(end, from + part),
                      row_scales, row_sums, publishes);
        together(k_group);
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
        multiply<BITS_A>(acc, tiles, ring, columns, stride, first, end, outputs / 16, n_tile, prepare);
    else
        multiply<BITS_B>(acc, tiles, ring, columns, stride, first, end, outputs / 16, n_tile, prepare);

    // Sums over the warps: integers, so any order gives the same. Lane q of a quad has row 4 p + q; rows past
    // `pairs` held stale bytes and are dropped.
    const int q = threadIdx.x & 3, r = (threadIdx.x & 31) >> 2;
#pragma unroll
    for (int p = 0; p < PASSES; p++) {
        const int row = 4 * p + q;
        if (row >= pairs) continue;
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            int* at = totals + row * 2 * OUTPUTS + (column * TILES + i) * 16 + r;
            atomicAdd(at, acc[p][i][0]);
            atomicAdd(at + OUTPUTS, acc[p][i][1]);
            atomicAdd(at + 8, acc[p][i][2]);
            atomicAdd(at + OUTPUTS + 8, acc[p][i][3]);
        }
    }
    if (awaited) wait_for_earlier();  // it still needs the memory written below
    __syncthreads();
    for (int i = threadIdx.x; i < pairs * 2 * OUTPUTS; i += WARPS * 32)
        partial[(of_split * 2 + i / OUTPUTS) * pitch + block * OUTPUTS + i % OUTPUTS] = totals[i];
    if (publishes && threadIdx.x < pairs) {
        sums[of_split + threadIdx.x] = row_sums[threadIdx.x];
        scale[pair + threadIdx.x] = row_scales[threadIdx.x];
    }
    if (awaited && threadIdx.x == 0) {
        const int blocks = (outputs + OUTPUTS - 1) / OUTPUTS * gridDim.y * groups * jobs;
        if (atomicAdd(awaited, 1) == blocks - 1)
            for (int i = 0; i <= jobs; i++) awaited[i] = 0;
    }
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
        finish_gated(to, from, first_pair + i, pair_capacity, matrix_of_job, matrices, outputs,
                     block * OUTPUTS / ROTATION * ROTATION + 4 * (threadIdx.x & 31));
    if (!gated_ready) return;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(gated_ready + 1 + job, 1);
    }
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
