// Which experts the rows of a step meet, as pairs and jobs for the grouped products, and the rows rotated for each of
// them; nothing visits the host.
// Macro LANE_EXPERTS: experts a lane looks after, ceil(experts / 32). At most 16 rows, 1023 routed experts, 15 choices a row.

#include "../../exl3/csrc/exl3.cuh"
#include "../../hyper_connection/csrc/coefficients.cuh"

#ifndef LANE_EXPERTS
#define LANE_EXPERTS 9
#endif
#define MOST_ROWS 16
#define MOST_PAIRS (MOST_ROWS * 15)
#define NONE 0x7fffffff

// logits fp32 [rows, experts], bias fp32 [experts]. Row r chooses top_k experts by sigmoid(logit) + bias (ties go to
// the lower one), weighted by sigmoid(logit), normalized if asked, times scaling; a shared expert is matrix
// `experts`, chosen last with weight 1 by every row if `shared` is 1. Blocks of 512 threads, a warp a row.
// -> pairs in ascending order of (expert, row): pair_row, pair_matrix [pairs]; jobs of at most job_rows pairs; row_pair,
// row_matrix, row_weight [rows, choices] in ascending order of experts.
//
// Then x fp32 [rows, inputs] rotated for each pair: rotated fp32 [groups, pair_capacity, inputs] and its peaks; suh
// fp16 [groups, matrices, inputs]. Every block routes all rows, which takes less than another launch; the first one
// publishes, all share the rotations. One block more makes a site's coefficients (site_partial null: not wanted).
extern "C" __global__ void __launch_bounds__(512)
    route(const float* logits, const float* bias, int* pair_row,
          int* pair_matrix, int* pair_count, int* job_start,
          int* job_matrix, int* job_count, int* row_pair,
          int* row_matrix, float* row_weight, int rows, int job_rows, int experts, int top_k, int shared,
          int normalize, float scaling, const float* x, const __half* suh, float* rotated, float* peaks, int inputs,
          int groups, int pair_capacity, const float* site_partial, const float* site_base, const float* site_scale,
          float* coefficients, int site_blocks, int iterations, float eps, float norm_eps) {
    __shared__ unsigned members[1024];  // rows that meet an expert, one bit each
    __shared__ int first_pair[1024];
    __shared__ int chosen[MOST_ROWS][16];
    __shared__ float weights[MOST_ROWS][16];
    __shared__ int row_of[MOST_PAIRS], matrix_of[MOST_PAIRS];
    const int lane = threadIdx.x & 31, row = threadIdx.x >> 5, matrices = experts + shared;
    const int choices = top_k + shared;
    const int warps = blockDim.x >> 5, routing_blocks = gridDim.x - (site_partial != nullptr);
    const bool publishes = blockIdx.x == 0;
    let_next_begin();
    wait_for_earlier();
    if (blockIdx.x == routing_blocks) {
        make_coefficients({site_partial, site_base, site_scale, coefficients, rows, site_blocks, iterations, eps,
                           norm_eps});
        return;
    }
    for (int i = threadIdx.x; i < 1024; i += blockDim.x) members[i] = 0;
    __syncthreads();
    if (row < rows) {
        const float* from = logits + (size_t)row * experts;
        float scores[LANE_EXPERTS];
        u32 keys[LANE_EXPERTS];  // order as unsigned integers; 0: cannot be chosen (again)
#pragma unroll
        for (int i = 0; i < LANE_EXPERTS; i++) {
            const int e = lane + 32 * i;
            scores[i] = e < experts ? 1.0f / (1.0f + expf(-from[e])) : 0.0f;
            const u32 bits = __float_as_uint(e < experts ? scores[i] + bias[e] : 0.0f);
            keys[i] = e < experts ? (bits & 0x80000000u ? ~bits : bits | 0x80000000u) : 0u;
        }
        float score = 0.0f;  // lane c keeps choice c
        int expert = NONE;
        for (int c = 0; c < top_k; c++) {
            u32 best = 0;
#pragma unroll
            for (int i = 0; i < LANE_EXPERTS; i++) best = max(best, keys[i]);
            best = __reduce_max_sync(0xffffffffu, best);
            u32 which = NONE;
#pragma unroll
            for (int i = LANE_EXPERTS - 1; i >= 0; i--)
                if (keys[i] == best) which = lane + 32 * i;
            which = __reduce_min_sync(0xffffffffu, which);
            float its_score = 0.0f;
#pragma unroll
            for (int i = 0; i < LANE_EXPERTS; i++)
                if (which == lane + 32 * i) {
                    keys[i] = 0;
                    its_score = scores[i];
                }
            its_score = __shfl_sync(0xffffffffu, its_score, which & 31);
            if (lane == c) {
                expert = which;
                score = its_score;
            }
        }
        int rank = 0;
        for (int c = 0; c < top_k; c++) rank += __shfl_sync(0xffffffffu, expert, c) < expert;
        if (lane < top_k) {
            chosen[row][rank] = expert;
            weights[row][rank] = score;
        }
        __syncwarp();
        if (lane < top_k) {
            float total = weights[row][0];
            for (int c = 1; c < top_k; c++) total += weights[row][c];
            const float weight = normalize ? weights[row][lane] / (total + 1e-20f) : weights[row][lane];
            if (publishes) row_weight[row * choices + lane] = weight * scaling;
            atomicOr(&members[chosen[row][lane]], 1u << row);
        }
        if (shared && lane == top_k) {
            chosen[row][top_k] = experts;
            if (publishes) row_weight[row * choices + top_k] = 1.0f;
            atomicOr(&members[experts], 1u << row);
        }
    }
    const auto order_pairs = [&] {
        __syncthreads();
        // Warp w counts experts 32 w .. 32 w + 31; then everybody adds up the warps before it.
        __shared__ int pairs_of[32], jobs_of[32];
        for (int chunk = row; chunk * 32 < matrices; chunk += warps) {
            const int count = chunk * 32 + lane < matrices ? __popc(members[chunk * 32 + lane]) : 0;
            const int pairs = __reduce_add_sync(0xffffffffu, count);
            const int jobs = __reduce_add_sync(0xffffffffu, (count + job_rows - 1) / job_rows);
            if (lane == 0) {
                pairs_of[chunk] = pairs;
                jobs_of[chunk] = jobs;
            }
        }
        __syncthreads();
        for (int chunk = row; chunk * 32 < matrices; chunk += warps) {
            int pairs = 0, jobs = 0;
            for (int before = 0; before < chunk; before++) {
                pairs += pairs_of[before];
                jobs += jobs_of[before];
            }
            const int e = chunk * 32 + lane, count = e < matrices ? __popc(members[e]) : 0;
            const int own_jobs = (count + job_rows - 1) / job_rows;
            int through = own_jobs << 16 | count;
            for (int step = 1; step < 32; step <<= 1) {
                const int other = __shfl_up_sync(0xffffffffu, through, step);
                if (lane >= step) through += other;
            }
            const int start = pairs + (through & 0xffff) - count, job = jobs + (through >> 16) - own_jobs;
            if (e < matrices) first_pair[e] = start;
            if (publishes) {
                for (int i = 0; i < own_jobs; i++) {
                    job_start[job + i] = start + i * job_rows;
                    job_matrix[job + i] = e;
                }
            }
            if (e == matrices - 1 && publishes) {
                job_start[job + own_jobs] = start + count;
                *job_count = job + own_jobs;
                *pair_count = start + count;
            }
        }
        __syncthreads();
        if (row < rows && lane < choices) {
            const int expert = chosen[row][lane];
            const int pair = first_pair[expert] + __popc(members[expert] & ((1u << row) - 1));
            row_of[pair] = row;
            matrix_of[pair] = expert;
            if (publishes) {
                pair_row[pair] = row;
                pair_matrix[pair] = expert;
                row_pair[row * choices + lane] = pair;
                row_matrix[row * choices + lane] = expert;
            }
        }
    };
    if (rows == 1) {
        // Its choices are the pairs and the jobs as they are.
        if (row == 0 && lane < choices) {
            const int expert = lane < top_k ? chosen[0][lane] : experts;
            row_of[lane] = 0;
            matrix_of[lane] = expert;
            if (publishes) {
                pair_row[lane] = 0;
                pair_matrix[lane] = row_matrix[lane] = job_matrix[lane] = expert;
                row_pair[lane] = job_start[lane] = lane;
                if (lane == 0) job_start[choices] = *job_count = *pair_count = choices;
            }
        }
    } else {
        order_pairs();
    }
    __syncthreads();
    const int pairs = rows * choices, blocks = inputs / ROTATION;
    for (int item = blockIdx.x * warps + row; item < pairs * groups * blocks; item += routing_blocks * warps) {
        const int at = item % blocks * ROTATION + 4 * lane, pair = item / blocks % pairs;
        const int group = item / blocks / pairs;
        const float4 own = factors(suh + ((size_t)group * matrices + matrix_of[pair]) * inputs + at);
        const float4 loaded = *(const float4*)(x + (size_t)row_of[pair] * inputs + at);
        float v[4] = {loaded.x, loaded.y, loaded.z, loaded.w};
        const size_t out = (size_t)group * pair_capacity + pair;
        store_rotated(v, own, at, rotated + out * inputs, peaks + out * blocks);
    }
}
