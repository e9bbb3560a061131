// Which experts the rows of a prefill chunk meet, as pairs sorted by expert and blocks of them for the products;
// nothing visits the host. An expert's pairs begin at a multiple of eight; between them are holes.
// Macro LANE_EXPERTS: experts a lane looks after, ceil(experts / 32). At most 1023 routed experts, 15 choices a row.

#include "../../csrc/overlap.cuh"

#ifndef LANE_EXPERTS
#define LANE_EXPERTS 9
#endif
#define NONE 0x7fffffff
#define BLOCK_ROWS 128
#define WARPS 8

__device__ __forceinline__ int warp_sum(int x) {
#pragma unroll
    for (int step = 16; step; step >>= 1) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

// logits fp32 [rows, experts], bias fp32 [experts]. Row r chooses top_k experts by sigmoid(logit) + bias (ties go to
// the lower one), weighted by sigmoid(logit), normalized if asked, times scaling; a shared expert is matrix `experts`,
// chosen last with weight 1 by every row if `shared` is 1. Grid: ceil(rows / 8), 256 threads, a warp a row.
// -> experts and weights [rows, choices] in ascending order of experts; members [matrices, ceil(rows / 32)], zero
// before: the rows that meet a matrix, one bit each.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
    choose_chunk(const float* logits, const float* bias, int* row_expert, float* row_weight, unsigned* members,
                 int rows, int experts, int top_k, int shared, int normalize, float scaling) {
    wait_for_earlier();
    const int lane = threadIdx.x & 31, row = blockIdx.x * WARPS + (threadIdx.x >> 5), choices = top_k + shared;
    if (row >= rows) return;
    const float* from = logits + (size_t)row * experts;
    float keys[LANE_EXPERTS], scores[LANE_EXPERTS];
    unsigned open = 0;  // bit i: this lane's expert lane + 32 i can still be chosen
#pragma unroll
    for (int i = 0; i < LANE_EXPERTS; i++) {
        const int e = lane + 32 * i;
        scores[i] = e < experts ? 1.0f / (1.0f + expf(-from[e])) : 0.0f;
        keys[i] = e < experts ? scores[i] + bias[e] : 0.0f;
        open |= (e < experts ? 1u : 0u) << i;
    }
    float score = 0.0f;  // lane c keeps choice c
    int expert = NONE;
    for (int c = 0; c < top_k; c++) {
        float best = 0.0f, its_score = 0.0f;
        int which = NONE;
#pragma unroll
        for (int i = 0; i < LANE_EXPERTS; i++) {
            if ((open >> i & 1) && (which == NONE || keys[i] > best)) {
                best = keys[i];
                its_score = scores[i];
                which = lane + 32 * i;
            }
        }
#pragma unroll
        for (int step = 16; step; step >>= 1) {
            const float key = __shfl_xor_sync(0xffffffffu, best, step);
            const float value = __shfl_xor_sync(0xffffffffu, its_score, step);
            const int other = __shfl_xor_sync(0xffffffffu, which, step);
            if (other != NONE && (which == NONE || key > best || (key == best && other < which))) {
                best = key;
                its_score = value;
                which = other;
            }
        }
        if ((which & 31) == lane) open &= ~(1u << (which >> 5));
        if (lane == c) {
            expert = which;
            score = its_score;
        }
    }
    // The order of experts is that of the sums, too.
    int rank = 0;
    for (int c = 0; c < top_k; c++) rank += __shfl_sync(0xffffffffu, expert, c) < expert;
    float total = 0.0f;
    for (int place = 0; place < top_k; place++) {
        const unsigned owner = __ballot_sync(0xffffffffu, lane < top_k && rank == place);
        total += __shfl_sync(0xffffffffu, score, __ffs(owner) - 1);
    }
    if (lane < top_k) {
        row_expert[row * choices + rank] = expert;
        row_weight[row * choices + rank] = (normalize ? score / (total + 1e-20f) : score) * scaling;
    } else if (shared && lane == top_k) {
        expert = experts;
        row_expert[row * choices + top_k] = experts;
        row_weight[row * choices + top_k] = 1.0f;
    }
    if (lane < choices) atomicOr(members + (size_t)expert * ((rows + 31) / 32) + row / 32, 1u << (row & 31));
}

// Sum over the threads before this one; every thread gets `all` of it, too. One block of 1024.
__device__ __forceinline__ int sum_before(int x, int& all, int (&scratch)[32]) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int through = x;
#pragma unroll
    for (int step = 1; step < 32; step <<= 1) {
        const int other = __shfl_up_sync(0xffffffffu, through, step);
        if (lane >= step) through += other;
    }
    __syncthreads();
    if (lane == 31) scratch[warp] = through;
    __syncthreads();
    all = warp_sum(scratch[lane]);
    return through - x + warp_sum(lane < warp ? scratch[lane] : 0);
}

// members as choose_chunk leaves them. Every matrix's pairs are cut into blocks of one size, a multiple of eight and at
// most 128. -> first_pair [matrices]; block_matrix, block_start, block_end [blocks], block_count [1]; pair_row [pairs]:
// -1 in the holes. One block of 1024 threads.
extern "C" __global__ void __launch_bounds__(1024)
    blocks_chunk(const unsigned* members, int* first_pair, int* block_matrix, int* block_start, int* block_end,
                 int* block_count, int* pair_row, int rows, int matrices, int pairs) {
    __shared__ int counts[1024], scratch[32];
    wait_for_earlier();
    const int lane = threadIdx.x & 31, words = (rows + 31) / 32;
    for (int matrix = threadIdx.x >> 5; matrix < matrices; matrix += 32) {
        int count = 0;
        for (int i = lane; i < words; i += 32) count += __popc(members[(size_t)matrix * words + i]);
        count = warp_sum(count);
        if (lane == 0) counts[matrix] = count;
    }
    __syncthreads();
    const int matrix = threadIdx.x, count = matrix < matrices ? counts[matrix] : 0, room = (count + 7) / 8 * 8;
    const int blocks = (count + BLOCK_ROWS - 1) / BLOCK_ROWS;
    int used, made;
    const int first = sum_before(room, used, scratch), block = sum_before(blocks, made, scratch);
    if (matrix < matrices) first_pair[matrix] = first;
    const int each = blocks ? ((count + blocks - 1) / blocks + 7) / 8 * 8 : 0;
    for (int b = 0; b < blocks; b++) {
        block_matrix[block + b] = matrix;
        block_start[block + b] = first + b * each;
        block_end[block + b] = first + min((b + 1) * each, count);
    }
    for (int pair = count; pair < room; pair++) pair_row[first + pair] = -1;
    for (int pair = used + threadIdx.x; pair < pairs; pair += 1024) pair_row[pair] = -1;
    if (threadIdx.x == 0) *block_count = made;
}

// -> pair_row, pair_matrix of the pairs that are not holes, in ascending order of (matrix, row); row_pair [rows,
// choices]. Grid: ceil(rows / 8), 256 threads, a warp a row.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
    place_chunk(const int* row_expert, const unsigned* members, const int* first_pair, int* pair_row, int* pair_matrix,
                int* row_pair, int rows, int choices) {
    wait_for_earlier();
    const int lane = threadIdx.x & 31, row = blockIdx.x * WARPS + (threadIdx.x >> 5), words = (rows + 31) / 32;
    if (row >= rows) return;
    for (int c = 0; c < choices; c++) {
        const int matrix = row_expert[row * choices + c];
        const unsigned* own = members + (size_t)matrix * words;
        int before = 0;
        for (int i = lane; i <= row / 32; i += 32)
            before += __popc(own[i] & (i < row / 32 ? 0xffffffffu : (1u << (row & 31)) - 1));
        const int pair = first_pair[matrix] + warp_sum(before);
        if (lane == 0) {
            pair_row[pair] = row;
            pair_matrix[pair] = matrix;
            row_pair[row * choices + c] = pair;
        }
    }
}
