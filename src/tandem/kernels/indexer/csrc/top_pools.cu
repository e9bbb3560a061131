// The best pools of each row, exactly and in ascending order; ties go to the earlier pool.
//
// Radix selection over the scores' bits made monotonic, in digits of 11, 11 and 10 bits: three histograms find the last
// score that counts. After the first the keys that can still be the last one move to shared memory, unless too many
// scores are alike. Then every warp looks at consecutive pools, so that prefix sums put the chosen ones in order.

#include "../../csrc/overlap.cuh"

#define THREADS 1024
#define WARPS (THREADS / 32)
#define BINS 2048
#define COPIES 4  // of a histogram: scores are alike, and additions to one bin take turns
#define MOST_CANDIDATES 8192

typedef unsigned int u32;

// Sum over the threads before this one; *total: over all.
__device__ __forceinline__ int before(int value, int* scratch, int* total) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int through = value;
#pragma unroll
    for (int step = 1; step < 32; step <<= 1) {
        const int other = __shfl_up_sync(0xffffffffu, through, step);
        if (lane >= step) through += other;
    }
    __syncthreads();
    if (lane == 31) scratch[warp] = through;
    __syncthreads();
    int of_warp = scratch[lane];
#pragma unroll
    for (int step = 1; step < 32; step <<= 1) {
        const int other = __shfl_up_sync(0xffffffffu, of_warp, step);
        if (lane >= step) of_warp += other;
    }
    *total = __shfl_sync(0xffffffffu, of_warp, 31);
    const int warps_before = __shfl_sync(0xffffffffu, of_warp, (warp + 31) & 31);
    return (warp ? warps_before : 0) + through - value;
}

// scores fp32 [rows, max_pools], max_pools a multiple of 4; positions int32 [rows]. Row at position t sees (t + 1) /
// pool_tokens pools; if there are no more than `count`, nothing is written: the row attends to all. -> chosen int32
// [rows, count]. Grid: (rows).
extern "C" __global__ void __launch_bounds__(THREADS)
    top_pools(const float* scores, const int* positions, int* chosen,
              int max_pools, int pool_tokens, int count) {
    extern __shared__ u32 memory[];
    u32* histogram = memory;                   // [COPIES, BINS]
    u32* candidates = memory + COPIES * BINS;  // [MOST_CANDIDATES]
    __shared__ int scratch[WARPS];
    __shared__ u32 found_bin, found_left, found_size;
    __shared__ int filled;
    const int row = blockIdx.x, t = threadIdx.x, lane = t & 31, warp = t >> 5;
    const int pools = (positions[row] + 1) / pool_tokens;
    let_next_begin();
    wait_for_earlier();
    if (pools <= count) return;
    const float* from = scores + (size_t)row * max_pools;
    const auto monotonic = [](float score) {
        const u32 bits = __float_as_uint(score + 0.0f);  // -0 becomes 0
        return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    };
    // The keys of pools first .. first + 3; those past the end are 0, which is below every score's.
    const auto four = [&](int first, u32 (&keys)[4]) {
        const float4 v = first < pools ? *(const float4*)(from + first) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        keys[0] = first < pools ? monotonic(v.x) : 0u;
        keys[1] = first + 1 < pools ? monotonic(v.y) : 0u;
        keys[2] = first + 2 < pools ? monotonic(v.z) : 0u;
        keys[3] = first + 3 < pools ? monotonic(v.w) : 0u;
    };

    u32 high = 0, left = count;  // what is known of the last key from its top; how many are wanted among those like it
    int listed = -1;             // candidates in shared memory, -1: all scores are looked at
    for (int digit = 0; digit < 3; digit++) {
        const int shift = digit == 0 ? 21 : digit == 1 ? 10 : 0;
        const u32 known = digit == 0 ? 0u : digit == 1 ? 0xffffffffu << 21 : 0xffffffffu << 10;
        const u32 mask = digit == 2 ? 1023u : BINS - 1;
        for (int i = t; i < COPIES * BINS; i += THREADS) histogram[i] = 0;
        __syncthreads();
        const auto add = [&](u32 key) {
            if (key && (key & known) == high) atomicAdd(&histogram[(lane & (COPIES - 1)) * BINS + ((key >> shift) & mask)], 1u);
        };
        if (listed >= 0) {
            for (int i = t; i < listed; i += THREADS) add(candidates[i]);
        } else {
#pragma unroll 4
            for (int first = 4 * t; first < pools; first += 4 * THREADS) {
                u32 keys[4];
                four(first, keys);
#pragma unroll
                for (int i = 0; i < 4; i++) add(keys[i]);
            }
        }
        __syncthreads();
        // Thread t looks after bins 2047 - 2 t and 2046 - 2 t.
        u32 own[2] = {0, 0};
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int c = 0; c < COPIES; c++) own[i] += histogram[c * BINS + BINS - 1 - 2 * t - i];
        int all;
        const u32 above = before(own[0] + own[1], scratch, &all);
        if (above < left && above + own[0] + own[1] >= left) {
            const int second = above + own[0] < left;
            found_bin = BINS - 1 - 2 * t - second;
            found_left = left - above - (second ? own[0] : 0);
            found_size = own[second];
        }
        if (t == 0) filled = 0;
        __syncthreads();
        high |= found_bin << shift;
        left = found_left;
        if (digit == 0 && found_size <= MOST_CANDIDATES) {
            listed = found_size;
#pragma unroll 4
            for (int first = 4 * t; first < pools; first += 4 * THREADS) {
                u32 keys[4];
                four(first, keys);
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if (keys[i] && (keys[i] & (0xffffffffu << 21)) == high) candidates[atomicAdd(&filled, 1)] = keys[i];
            }
        }
        __syncthreads();
    }

    const u32 last = high;
    const int ties = left;  // pools of exactly this score that still count
    const int each = (pools + WARPS * 128 - 1) / (WARPS * 128) * 128, begin = warp * each;
    const int end = min(begin + each, pools);
    int above = 0, equal = 0;
#pragma unroll 4
    for (int first = begin + 4 * lane; first < end; first += 128) {
        u32 keys[4];
        four(first, keys);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            above += keys[i] > last;
            equal += keys[i] == last;
        }
    }
    int all;
    // A warp needs what the warps before it have: the sum before its first lane.
    int above_before = __shfl_sync(0xffffffffu, before(above, scratch, &all), 0);
    int equal_before = __shfl_sync(0xffffffffu, before(equal, scratch, &all), 0);
    int* out = chosen + (size_t)row * count;
    for (int start = begin; start < end; start += 128) {
        u32 keys[4];
        four(start + 4 * lane, keys);
        int own_above = 0, own_equal = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            own_above += keys[i] > last;
            own_equal += keys[i] == last;
        }
        int through = own_above | own_equal << 16;
#pragma unroll
        for (int step = 1; step < 32; step <<= 1) {
            const int other = __shfl_up_sync(0xffffffffu, through, step);
            if (lane >= step) through += other;
        }
        int a = above_before + (through & 0xffff) - own_above, e = equal_before + (through >> 16) - own_equal;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (keys[i] > last) out[a++ + min(e, ties)] = start + 4 * lane + i;
            if (keys[i] == last) {
                if (e < ties) out[a + e] = start + 4 * lane + i;
                e++;
            }
        }
        above_before = __shfl_sync(0xffffffffu, a, 31);
        equal_before = __shfl_sync(0xffffffffu, e, 31);
    }
}
