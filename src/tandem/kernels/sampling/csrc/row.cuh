// A row of logits in a block of threads: keys in the order of logits, weights in fixed point, and sums over the block.

#define THREADS 1024
#define WARPS (THREADS / 32)
#ifndef QUADS
#define QUADS 4  // loads of a thread under way, four logits each
#endif
#define BINS 2048
#define MOST_LOGPROBS 20
#define NOBODY 0x007fffffu  // the key of a forbidden token, -inf

typedef unsigned int u32;
typedef unsigned long long u64;

// A token of a bin or of those above it.
struct Entry {
    u32 key;
    int token;
};

struct Shared {
    union {
        struct {
            u32 low[BINS], high[BINS];  // halves of 64-bit sums: shared memory adds 32 bits at a time
        };
        struct {
            u64 measures[THREADS];  // of the candidates
            Entry above[THREADS];   // the tokens of better bins
        };
    };
    Entry candidates[THREADS];  // the tokens of one bin
    __align__(16) float logits[THREADS];
    int tokens[THREADS];
    u64 scratch[WARPS];
    u64 sum_above, better, equals;
    int bin, found;
    u32 filled, filled_above, threshold;
};

// Unsigned integers in the order of logits.
__device__ __forceinline__ u32 key_of(float logit) {
    const u32 bits = __float_as_uint(logit + 0.0f);  // -0 becomes 0
    return bits ^ ((u32)((int)bits >> 31) | 0x80000000u);
}

__device__ __forceinline__ float logit_of(u32 key) {
    return __uint_as_float(key ^ (~(u32)((int)key >> 31) | 0x80000000u));
}

// 2^((logit - peak) * tempering), reference.py's weights_of operation by operation.
__device__ __forceinline__ u64 weight_of(float logit, float peak, float tempering) {
    const float octaves = fmaxf(__fmul_rn(__fsub_rn(logit, peak), tempering), -63.0f);
    const float whole = __fsub_rn(__fadd_rn(octaves, 12582912.0f), 12582912.0f);  // 1.5 * 2^23: rounds to integers
    const float part = __fsub_rn(octaves, whole);
    float value = 0.00015353324f;
    value = __fadd_rn(__fmul_rn(value, part), 0.0013398873f);
    value = __fadd_rn(__fmul_rn(value, part), 0.009618437f);
    value = __fadd_rn(__fmul_rn(value, part), 0.05550332f);
    value = __fadd_rn(__fmul_rn(value, part), 0.24022648f);
    value = __fadd_rn(__fmul_rn(value, part), 0.6931472f);
    value = __fadd_rn(__fmul_rn(value, part), 1.0f);
    return (u64)(u32)(value * 1073741824.0f) << 14 >> (int)-whole;
}

__device__ __forceinline__ u64 from_lane(u64 value, int lane) {
    const u32 low = __shfl_sync(0xffffffffu, (u32)value, lane), high = __shfl_sync(0xffffffffu, (u32)(value >> 32), lane);
    return (u64)high << 32 | low;
}

// The sum over the warp's lanes up to this one.
__device__ __forceinline__ u64 through_lane(u64 value) {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int step = 1; step < 32; step <<= 1) {
        const u64 other = from_lane(value, lane >= step ? lane - step : lane);
        if (lane >= step) value += other;
    }
    return value;
}

// All threads get the block's sum or largest value.
template <class Join>
__device__ __forceinline__ u64 joined(u64 value, Join join, Shared& s) {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int step = 16; step; step >>= 1) value = join(value, from_lane(value, lane ^ step));
    __syncthreads();
    if (lane == 0) s.scratch[threadIdx.x >> 5] = value;
    __syncthreads();
    value = s.scratch[lane];
#pragma unroll
    for (int step = 16; step; step >>= 1) value = join(value, from_lane(value, lane ^ step));
    return value;
}

__device__ __forceinline__ u64 sum(u64 value, Shared& s) {
    return joined(value, [](u64 a, u64 b) { return a + b; }, s);
}

__device__ __forceinline__ u64 largest(u64 value, Shared& s) {
    return joined(value, [](u64 a, u64 b) { return a > b ? a : b; }, s);
}

// The sum over the threads before this one; *all: over every thread.
__device__ __forceinline__ u64 before(u64 value, u64* all, Shared& s) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const u64 through = through_lane(value);
    __syncthreads();
    if (lane == 31) s.scratch[warp] = through;
    __syncthreads();
    const u64 warps = through_lane(s.scratch[lane]);
    *all = from_lane(warps, 31);
    return (warp ? from_lane(warps, warp - 1) : 0) + through - value;
}

struct Row {
    float* logits;    // aligned to 16 bytes; readable to the next multiple of four
    const u32* mask;  // null: every token is allowed
    int size;
    const int* tokens;  // ascending; null: token i lies at i

    __device__ __forceinline__ int token(int i) const { return tokens ? tokens[i] : i; }

    // The keys of tokens i .. i + 3, i a multiple of 4; 0, which is below every key, from `end` on.
    __device__ __forceinline__ void convert(const float4& v, int i, int end, u32 (&keys)[4]) const {
        keys[0] = key_of(v.x), keys[1] = key_of(v.y), keys[2] = key_of(v.z), keys[3] = key_of(v.w);
        if (mask) {
            const u32 allowed = i < end ? mask[i >> 5] >> (i & 31) : 0;
#pragma unroll
            for (int j = 0; j < 4; j++) keys[j] = allowed >> j & 1 ? keys[j] : NOBODY;
        }
        if (i + 4 > end) {
#pragma unroll
            for (int j = 0; j < 4; j++) keys[j] = i + j < end ? keys[j] : 0;
        }
    }
    __device__ __forceinline__ float4 load(int i, int end) const {
        return i < end ? *(const float4*)(logits + i) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    // use(i, key) for the tokens of [begin, end) at `first` + 4 n `step`, ascending, some past the end with key 0.
    template <class Use>
    __device__ __forceinline__ void visit(int first, int end, int step, Use use) const {
        for (; first < end; first += QUADS * 4 * step) {
            float4 values[QUADS];
#pragma unroll
            for (int q = 0; q < QUADS; q++) values[q] = load(first + q * 4 * step, end);
#pragma unroll
            for (int q = 0; q < QUADS; q++) {
                u32 keys[4];
                convert(values[q], first + q * 4 * step, end, keys);
#pragma unroll
                for (int j = 0; j < 4; j++) use(first + q * 4 * step + j, keys[j]);
            }
        }
    }
    // The same for all of the row, a thread's share.
    template <class Use>
    __device__ __forceinline__ void each(Use use) const {
        visit(4 * threadIdx.x, size, THREADS, use);
    }
};
