// The best pools of each row, exactly and in ascending order; ties go to the earlier pool.
//
// Radix selection over the scores' bits made monotonic: four passes of eight bits find the last score that
// counts, then every thread looks at consecutive pools, so that a prefix sum puts the chosen ones in order.

#include "../../csrc/overlap.cuh"

#define THREADS 1024

// scores fp32 [rows, max_pools]; positions int32 [rows]. Row at position t sees (t + 1) / pool_tokens pools; if
// there are no more than `count`, nothing is written: the row attends to all. -> chosen int32 [rows, count].
extern "C" __global__ void __launch_bounds__(THREADS)
    top_pools(const float* scores, const int* positions, int* chosen,
              int max_pools, int pool_tokens, int count) {
    __shared__ unsigned histogram[256];
    __shared__ unsigned prefix, remaining;
    __shared__ int sums[2][32];
    let_next_begin();
    wait_for_earlier();
    const int row = blockIdx.x, t = threadIdx.x, lane = t & 31, warp = t >> 5;
    const int pools = (positions[row] + 1) / pool_tokens;
    if (pools <= count) return;
    const float* from = scores + (size_t)row * max_pools;
    const auto key = [&](int pool) {
        const unsigned bits = __float_as_uint(from[pool] + 0.0f);  // -0 becomes 0
        return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    };
    if (t == 0) {
        prefix = 0;
        remaining = count;
    }
    for (int shift = 24; shift >= 0; shift -= 8) {
        if (t < 256) histogram[t] = 0;
        __syncthreads();
        const unsigned high = prefix;
        for (int pool = t; pool < pools; pool += THREADS) {
            const unsigned k = key(pool);
            if (shift == 24 || (k >> (shift + 8)) == (high >> (shift + 8)))
                atomicAdd(&histogram[(k >> shift) & 255u], 1u);
        }
        __syncthreads();
        if (warp == 0) {
            // Lane l sums bins 255 - 8 l down to 248 - 8 l; the lane in which the count is reached looks closer.
            unsigned own = 0;
            for (int i = 0; i < 8; i++) own += histogram[255 - 8 * lane - i];
            unsigned before = own;
            for (int step = 1; step < 32; step <<= 1) {
                const unsigned other = __shfl_up_sync(0xffffffffu, before, step);
                if (lane >= step) before += other;
            }
            const unsigned wanted = remaining;
            __syncwarp();
            if (before >= wanted && before - own < wanted) {
                unsigned left = wanted - (before - own);
                int bin = 255 - 8 * lane;
                while (histogram[bin] < left) left -= histogram[bin--];
                prefix = high | ((unsigned)bin << shift);
                remaining = left;
            }
        }
        __syncthreads();
    }
    const unsigned last = prefix;
    const int ties = remaining;  // pools of exactly this score that still count
    const int each = (pools + THREADS - 1) / THREADS, begin = t * each, end = min(begin + each, pools);
    int above = 0, equal = 0;
    for (int pool = begin; pool < end; pool++) {
        const unsigned k = key(pool);
        above += k > last;
        equal += k == last;
    }
    const auto exclusive = [&](int value, int which) {
        int total = value;
        for (int step = 1; step < 32; step <<= 1) {
            const int other = __shfl_up_sync(0xffffffffu, total, step);
            if (lane >= step) total += other;
        }
        if (lane == 31) sums[which][warp] = total;
        __syncthreads();
        int before = 0;
        for (int w = 0; w < warp; w++) before += sums[which][w];
        return before + total - value;
    };
    int above_before = exclusive(above, 0), equal_before = exclusive(equal, 1);
    int* out = chosen + (size_t)row * count;
    for (int pool = begin; pool < end; pool++) {
        const unsigned k = key(pool);
        if (k > last) out[above_before++ + min(equal_before, ties)] = pool;
        if (k == last) {
            if (equal_before < ties) out[above_before + equal_before] = pool;
            equal_before++;
        }
    }
}
