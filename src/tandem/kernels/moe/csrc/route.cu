// Which experts the rows of a step meet, as pairs and jobs for the grouped products; nothing visits the host.
// Macros: none. At most 16 rows, 1023 routed experts, 15 choices a row.

#define MOST_ROWS 16

// logits fp32 [rows, experts], bias fp32 [experts]. Row r chooses top_k experts by sigmoid(logit) + bias (ties go to
// the lower one), weighted by sigmoid(logit), normalized if asked, times scaling; a shared expert is matrix
// `experts`, chosen last with weight 1 by every row if `shared` is 1. One block of 512 threads, a warp a row.
// -> pairs in ascending order of (expert, row): pair_row, pair_matrix [pairs]; jobs; row_pair, row_weight
// [rows, choices] in ascending order of experts.
extern "C" __global__ void __launch_bounds__(512)
    route(const float* __restrict__ logits, const float* __restrict__ bias, int* __restrict__ pair_row,
          int* __restrict__ pair_matrix, int* __restrict__ pair_count, int* __restrict__ job_start,
          int* __restrict__ job_matrix, int* __restrict__ job_count, int* __restrict__ row_pair,
          float* __restrict__ row_weight, int rows, int experts, int top_k, int shared, int normalize,
          float scaling) {
    __shared__ unsigned members[1024];  // rows that meet an expert, one bit each
    __shared__ int first_pair[1024];
    __shared__ int chosen[MOST_ROWS][16];
    __shared__ float weights[MOST_ROWS][16];
    const int lane = threadIdx.x & 31, row = threadIdx.x >> 5, matrices = experts + shared;
    const int choices = top_k + shared;
    for (int i = threadIdx.x; i < 1024; i += blockDim.x) members[i] = 0;
    __syncthreads();
    if (row < rows) {
        const float* from = logits + (size_t)row * experts;
        unsigned taken = 0;  // bit i: this lane's expert lane + 32 i is chosen
        float score = 0.0f;  // lane c keeps choice c
        int expert = 0x7fffffff;
        for (int c = 0; c < top_k; c++) {
            float best = -__int_as_float(0x7f800000);
            int which = 0x7fffffff;
            for (int i = 0; lane + 32 * i < experts; i++) {
                const int e = lane + 32 * i;
                const float key = 1.0f / (1.0f + expf(-from[e])) + bias[e];
                if (!(taken >> i & 1) && (key > best || which == 0x7fffffff)) {
                    best = key;
                    which = e;
                }
            }
            for (int step = 16; step; step >>= 1) {
                const float other = __shfl_xor_sync(0xffffffffu, best, step);
                const int its = __shfl_xor_sync(0xffffffffu, which, step);
                if (its != 0x7fffffff && (which == 0x7fffffff || other > best || (other == best && its < which))) {
                    best = other;
                    which = its;
                }
            }
            if ((which & 31) == lane) taken |= 1u << (which >> 5);
            if (lane == c) {
                expert = which;
                score = 1.0f / (1.0f + expf(-from[which]));
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
            row_weight[row * choices + lane] = weight * scaling;
            atomicOr(&members[chosen[row][lane]], 1u << row);
        }
        if (shared && lane == top_k) {
            chosen[row][top_k] = experts;
            row_weight[row * choices + top_k] = 1.0f;
            atomicOr(&members[experts], 1u << row);
        }
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        int pairs = 0, jobs = 0;
        for (int from = 0; from < matrices; from += 32) {
            const int e = from + lane;
            const int count = e < matrices ? __popc(members[e]) : 0;
            int before = count;
            for (int step = 1; step < 32; step <<= 1) {
                const int other = __shfl_up_sync(0xffffffffu, before, step);
                if (lane >= step) before += other;
            }
            const unsigned active = __ballot_sync(0xffffffffu, count > 0);
            const int job = jobs + __popc(active & ((1u << lane) - 1));
            if (e < matrices) first_pair[e] = pairs + before - count;
            if (count > 0) {
                job_start[job] = pairs + before - count;
                job_matrix[job] = e;
            }
            pairs += __shfl_sync(0xffffffffu, before, 31);
            jobs += __popc(active);
        }
        if (lane == 0) {
            job_start[jobs] = pairs;
            *job_count = jobs;
            *pair_count = pairs;
        }
    }
    __syncthreads();
    if (row < rows && lane < choices) {
        const int expert = chosen[row][lane];
        const int pair = first_pair[expert] + __popc(members[expert] & ((1u << row) - 1));
        pair_row[pair] = row;
        pair_matrix[pair] = expert;
        row_pair[row * choices + lane] = pair;
    }
}
