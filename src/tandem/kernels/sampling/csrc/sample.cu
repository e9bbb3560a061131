// One token of each row of logits: edits, filters, the draw and logprobs, equal to reference.py to the last integer.
//
// A block a row. Weights are multiples of 2^-44 of the peak's, so that sums are exact in any order. Edits are made in place
// and taken back before the block ends.

#include "../../csrc/overlap.cuh"
#include "row.cuh"
#include "selection.cuh"

#define INFINITE 0xff800000u  // the key of inf; NaNs lie above
#define AHEAD 8               // host reads of a thread under way
#define OCTAVES 45.0f  // below the peak a weight is 0
#define WIDEST 64.0f   // logits below the peak that bins cover where tokens are counted

struct Request {
    u64 point;        // multiples of 2^-64
    u64 top_p;        // likewise; 0: off
    float tempering;  // octaves a logit
    float reach;      // min_p: logits from the peak, -inf: off
    float penalty;
    int top_k;     // 0: off
    int greedy;    // 1: the best token
    int logprobs;  // of so many best tokens, -1: none
    int masked;    // 1: the row has a mask
    int absent;    // 1: nothing is asked of this row
    int first, seen, output, biased, held;  // its edits
};

struct Result {
    u64 total;      // raw weights at temperature 1
    int token;      // -1: none
    int not_finite;
    u32 threshold;  // drawn from
    int last_tie;
    float peak, logit;  // raw
    int top_ids[MOST_LOGPROBS];
    float top_logits[MOST_LOGPROBS];
};

// The edits of all rows.
struct Lists {
    const int* ids;
    const float* amounts;
    float* replaced;
};

// The raw distribution: the sum of its weights and its best tokens in order.
__device__ void logprobs(const Row row, const Extremes ends, int top, Result& result, Shared& s) {
    const float peak = logit_of(ends.best);
    const int wanted = top < row.size ? top : row.size;
    u64 part = 0;
    row.each([&](int, u32 key) { part += key ? weight_of(logit_of(key), peak, 1.44269504f) : 0; });
    part = sum(part, s);
    if (threadIdx.x == 0) result.total = part, result.peak = peak;
    if (wanted == 0) return;
    Row left = row;
    const Kept best = narrowed(left, {NOBODY, -1}, ends, WIDEST, {false}, wanted, s);
    __syncthreads();
    if (threadIdx.x == 0) s.filled = 0;
    __syncthreads();
    left.each([&](int i, u32 key) {
        if (best.holds(i, key)) s.candidates[atomicAdd(&s.filled, 1u)] = {key, left.token(i)};
    });
    __syncthreads();
    if (threadIdx.x < wanted) {
        const Entry own = s.candidates[threadIdx.x];
        int rank = 0;
        for (int i = 0; i < wanted; i++) {
            const Entry other = s.candidates[i];
            rank += other.key > own.key || (other.key == own.key && other.token < own.token);
        }
        result.top_ids[rank] = own.token;
        result.top_logits[rank] = logit_of(own.key);
    }
}

// change(logit, amount) of the tokens ids[first .. first + count), which are distinct; what was there is kept. Loads of a
// thread go ahead of its stores: ids and amounts come from the host.
template <class Change>
__device__ __forceinline__ void edit(float* logits, const Lists& lists, int first, int count, Change change) {
    for (int e = first + threadIdx.x; e < first + count; e += AHEAD * THREADS) {
        int id[AHEAD];
        float amount[AHEAD], value[AHEAD];
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            const int at = e + j * THREADS;
            id[j] = at < first + count ? lists.ids[at] : -1;
            amount[j] = at < first + count ? lists.amounts[at] : 0.0f;
        }
#pragma unroll
        for (int j = 0; j < AHEAD; j++) value[j] = id[j] < 0 ? 0.0f : logits[id[j]];
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            if (id[j] >= 0) {
                lists.replaced[e + j * THREADS] = value[j];
                logits[id[j]] = change(value[j], amount[j]);
            }
    }
    __syncthreads();
}

__device__ __forceinline__ void take_back(float* logits, const Lists& lists, int first, int count) {
    for (int e = first + threadIdx.x; e < first + count; e += AHEAD * THREADS) {
        int id[AHEAD];
#pragma unroll
        for (int j = 0; j < AHEAD; j++) id[j] = e + j * THREADS < first + count ? lists.ids[e + j * THREADS] : -1;
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            if (id[j] >= 0) logits[id[j]] = lists.replaced[e + j * THREADS];
    }
    __syncthreads();
}

// logits fp32 [rows, stride], of which `size` columns are tokens; requests [rows] and results [rows] may lie in host memory,
// as may ids int32 and amounts fp32 [edits] and masks u32 [rows, ceil(size / 32)]; replaced fp32 [edits] is scratch. Grid:
// (rows). Dynamic shared memory: a row's mask, if any has one.
extern "C" __global__ void __launch_bounds__(THREADS)
    sample(float* all_logits, const Request* requests, const int* ids, const float* amounts, const u32* masks,
           float* replaced, Result* results, int stride, int size) {
    extern __shared__ u32 mask[];
    __shared__ Shared s;
    __shared__ Request asked;
    let_next_begin();
    const int t = threadIdx.x, words = (size + 31) / 32;
    if (t == 0) asked = requests[blockIdx.x];
    __syncthreads();
    const Request& ask = asked;
    Result& result = results[blockIdx.x];
    if (ask.masked)
        for (int i = t; i < words; i += THREADS) mask[i] = masks[(size_t)blockIdx.x * words + i];
    wait_for_earlier();
    if (ask.absent) return;

    const Row raw = {all_logits + (size_t)blockIdx.x * stride, nullptr, size, nullptr};
    Extremes ends = extremes(raw, s);
    u64 bad = 0;
    if (ends.lowest <= NOBODY || ends.best >= INFINITE) {
        raw.each([&](int, u32 key) { bad += key && (key <= NOBODY || key >= INFINITE); });
        bad = sum(bad, s);
    }
    if (t == 0) result.token = -1, result.not_finite = (int)bad;
    if (bad) return;
    if (ask.logprobs >= 0) logprobs(raw, ends, ask.logprobs, result, s);

    const Row row = {raw.logits, ask.masked ? mask : nullptr, size, nullptr};
    const Lists lists = {ids, amounts, replaced};
    const int output = ask.first + ask.seen, biased = output + ask.output, held = biased + ask.biased;
    const bool edits = held + ask.held > ask.first;
    if (edits) {
        edit(row.logits, lists, ask.first, ask.seen,
             [&](float v, float) { return v > 0.0f ? __fdiv_rn(v, ask.penalty) : __fmul_rn(v, ask.penalty); });
        edit(row.logits, lists, output, ask.output, [](float v, float amount) { return __fsub_rn(v, amount); });
        edit(row.logits, lists, biased, ask.biased, [](float v, float amount) { return __fadd_rn(v, amount); });
        edit(row.logits, lists, held, ask.held, [](float, float) { return logit_of(NOBODY); });
    }
    const u32 lowest = ends.lowest;  // of the raw row is good enough to lay bins
    if (edits || ask.masked) ends = extremes(row, s);
    bool holding = ask.held > 0;
    if (holding && ask.masked && ends.best <= NOBODY) {  // a finished grammar leaves nothing but the end
        take_back(row.logits, lists, held, ask.held);
        holding = false;
        ends = extremes(row, s);
    }
    ends.lowest = lowest;

    Kept kept = {0, -1};
    int token = ends.best > NOBODY ? ends.place : -1;
    if (token >= 0 && !ask.greedy) {
        Row left = row;
        const float peak = logit_of(ends.best);
        const u32 reached = key_of(__fadd_rn(peak, ask.reach));
        const Measure weight = {true, peak, ask.tempering};
        kept.threshold = reached > NOBODY ? reached - 1 : NOBODY;
        if (ask.top_k > 0) kept = narrowed(left, kept, ends, WIDEST, {false}, ask.top_k, s);
        if (ask.top_p > 0) kept = narrowed(left, kept, ends, __fdiv_rn(OCTAVES, ask.tempering), weight, ask.top_p, s);
        const Row now = left;
        const int place = locate(
            now, [&](int i, u32 key) { return kept.holds(i, key) ? weight(key) : 0; },
            [&](u64 all) { return __umul64hi(ask.point, all); }, -1, s);
        if (place >= 0) token = now.token(place);
        if (kept.last_tie >= 0) kept.last_tie = now.token(min(kept.last_tie, now.size - 1));
    }
    if (edits) {
        if (holding) take_back(row.logits, lists, held, ask.held);
        take_back(row.logits, lists, biased, ask.biased);
        take_back(row.logits, lists, output, ask.output);
        take_back(row.logits, lists, ask.first, ask.seen);
    }
    if (t == 0) {
        result.token = token;
        result.threshold = kept.threshold;
        result.last_tie = kept.last_tie;
        if (token >= 0) result.logit = raw.logits[token];
    }
}
