// The survivors of a row and the token at a place among them.
//
// A set of survivors is a threshold: tokens whose key lies above it, and of those that equal it the ones up to a last id.
// top_k and top_p are one selection, which measures a token as 1 or as its weight:
//
//   peak ─ bins of equal width, best first ─ the bin in which the sum reaches what is wanted ─ the key among its keys at
//   which it does, the threshold ─ the last of that key's tokens that is still wanted
//
// and the draw is a running sum in the order of ids. Where few tokens are left they become a row of their own in shared
// memory, in the order of ids, and what follows looks at them alone.

struct Kept {
    u32 threshold;
    int last_tie;  // its place in the row

    __device__ __forceinline__ bool holds(int i, u32 key) const {
        return key > threshold || (key == threshold && i <= last_tie);
    }
};

// The place of the best token, the lowest id of equals, its key, and the lowest key.
struct Extremes {
    u32 best, lowest;
    int place;
};

__device__ __noinline__ Extremes extremes(const Row row, Shared& s) {
    u32 best = 0, lowest = 0xffffffffu;
    int place = 0;
    row.each([&](int i, u32 key) {
        if (key > best) best = key, place = i;
        lowest = min(lowest, key - 1);  // 0, which is no token, becomes the largest
    });
    const u64 found = largest((u64)best << 32 | (u32)~place, s);
    return {(u32)(found >> 32), ~(u32)largest(~lowest, s) + 1, (int)~(u32)found};
}

// How much of what is wanted a token is: 1, or its weight.
struct Measure {
    bool weighs;
    float peak, tempering;

    __device__ __forceinline__ u64 operator()(u32 key) const {
        return weighs ? weight_of(logit_of(key), peak, tempering) : 1;
    }
};

// The first place at which the running sum of measure(i, key) exceeds wanted(sum over all); `otherwise` if none does.
template <class MeasureAt, class Wanted>
__device__ __forceinline__ int locate(const Row row, MeasureAt measure, Wanted wanted, int otherwise, Shared& s) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int each = (row.size + 4 * THREADS - 1) / (4 * THREADS) * 128, begin = warp * each;  // a warp's tokens
    const int end = min(begin + each, row.size);
    __syncthreads();
    if (threadIdx.x == 0) s.found = otherwise;
    u64 own = 0, all;
    row.visit(begin + 4 * lane, end, 32, [&](int i, u32 key) { own += measure(i, key); });
    const u64 earlier = before(own, &all, s), target = wanted(all);
    u64 running = from_lane(earlier, 0);
    if (running <= target && target < from_lane(earlier + own, 31)) {
        for (int first = begin + 4 * lane;; first += 128) {
            u32 keys[4];
            row.convert(row.load(first, end), first, end, keys);
            u64 mine[4];
#pragma unroll
            for (int j = 0; j < 4; j++) mine[j] = measure(first + j, keys[j]) + (j ? mine[j - 1] : 0);
            const u64 through = running + through_lane(mine[3]);
            const u32 beyond = __ballot_sync(0xffffffffu, through > target);
            if (beyond) {
                if (lane == __ffs(beyond) - 1) {
                    const u64 rest = target - (through - mine[3]);
                    s.found = first + (mine[0] <= rest) + (mine[1] <= rest) + (mine[2] <= rest);
                }
                break;
            }
            running = from_lane(through, 31);
        }
    }
    __syncthreads();
    return s.found;
}

// Bins of equal width below the peak, best first; the last holds all that is further away.
struct Bins {
    float peak, scale;

    __device__ __forceinline__ int operator()(u32 key) const {
        return (int)fminf(__fmul_rn(__fsub_rn(peak, logit_of(key)), scale), (float)(BINS - 1));
    }
};

// The sum over the kept tokens of one bin whose key is at least `least`.
__device__ __noinline__ u64 sum_from(u32 least, const Row row, const Kept kept, const Bins bins, int bin,
                                     const Measure measure, Shared& s) {
    u64 part = 0;
    row.each([&](int i, u32 key) {
        if (key >= least && kept.holds(i, key) && bins(key) == bin) part += measure(key);
    });
    return sum(part, s);
}

// The key of a bin at which the sum over its better tokens and its equals reaches `missing`: s.threshold, with the sum
// over the better ones, s.better, and the number of equals, s.equals. Its keys are low .. high.
__device__ __forceinline__ void find_threshold(u32 low, u32 high, u64 missing, const Row row, const Kept kept,
                                               const Bins bins, int bin, const Measure measure, Shared& s) {
    const int t = threadIdx.x;
    if (s.filled <= THREADS) {  // every candidate looks at the others
        const int count = s.filled;
        const u32 key = t < count ? s.candidates[t].key : 0;
        if (t < count) s.measures[t] = measure(key);
        __syncthreads();
        u64 better = 0, equals = 0;
        if (t < count)
            for (int i = 0; i < count; i++) {
                better += s.candidates[i].key > key ? s.measures[i] : 0;
                equals += s.candidates[i].key == key;
            }
        if (t < count && better < missing && missing <= better + equals * s.measures[t])
            s.threshold = key, s.better = better, s.equals = equals;
    } else {
        while (low < high) {
            const u32 middle = low + (high - low + 1) / 2;
            if (sum_from(middle, row, kept, bins, bin, measure, s) >= missing) low = middle;
            else high = middle - 1;
        }
        const u64 better = sum_from(low + 1, row, kept, bins, bin, measure, s);
        const u64 equals = (sum_from(low, row, kept, bins, bin, measure, s) - better) / measure(low);
        if (t == 0) s.threshold = low, s.better = better, s.equals = equals;
    }
    __syncthreads();
}

// The gathered tokens as a row, in the order of ids: everyone counts the lower ones.
__device__ __forceinline__ Row listed(Shared& s) {
    const int t = threadIdx.x, above = s.filled_above, count = above + s.filled;
    const auto entry = [&](int i) { return i < above ? s.above[i] : s.candidates[i - above]; };
    if (t < count) {
        const Entry own = entry(t);
        int rank = 0;
        for (int i = 0; i < count; i++) rank += entry(i).token < own.token;
        s.logits[rank] = logit_of(own.key);
        s.tokens[rank] = own.token;
    }
    __syncthreads();
    return {s.logits, nullptr, count, s.tokens};
}

// Of the kept tokens, best first and lowest id first among equals, the fewest whose measures sum to `wanted`, or to
// `wanted` · 2^-64 of their sum if they are weights; all of them if that is more than they have. `row` becomes a list of
// them and few others, if they are few. Bins reach down to `widest` logits below the peak.
__device__ __noinline__ Kept narrowed(Row& row, Kept kept, const Extremes ends, float widest, const Measure measure,
                                      u64 wanted, Shared& s) {
    const int t = threadIdx.x;
    const Row from = row;
    const float peak = logit_of(ends.best), span = fminf(__fsub_rn(peak, logit_of(ends.lowest)), widest);
    const Bins bins = {peak, span > 0.0f ? (BINS - 1) / span : 0.0f};
    const auto add = [&](int bin, u64 value) {
        const u32 low = (u32)value, high = (u32)(value >> 32) + (atomicAdd(&s.low[bin], low) > ~low);
        if (high) atomicAdd(&s.high[bin], high);
    };
    __syncthreads();
    for (int bin = t; bin < BINS; bin += THREADS) s.low[bin] = s.high[bin] = 0;
    if (t == 0) s.filled = s.filled_above = 0;
    __syncthreads();
    u64 last = 0, all;  // what falls into the last bin, which may be most of the row, is added once
    from.each([&](int i, u32 key) {
        if (!kept.holds(i, key)) return;
        const int bin = bins(key);
        if (bin == BINS - 1) last += measure(key);
        else add(bin, measure(key));
    });
    if (last) add(BINS - 1, last);
    __syncthreads();
    u64 own[2];
#pragma unroll
    for (int i = 0; i < 2; i++) own[i] = (u64)s.high[2 * t + i] << 32 | s.low[2 * t + i];
    const u64 earlier = before(own[0] + own[1], &all, s);
    const u64 rounded_up = __umul64hi(wanted, all) + (wanted * all != 0);
    const u64 goal = !measure.weighs ? wanted : rounded_up ? rounded_up : 1;
    if (goal > all) return kept;
    if (earlier < goal && goal <= earlier + own[0] + own[1]) {
        const int second = earlier + own[0] < goal;
        s.bin = 2 * t + second;
        s.sum_above = earlier + (second ? own[0] : 0);
    }
    __syncthreads();
    const int bin = s.bin;
    const u64 missing = goal - s.sum_above;  // of the bin
    u32 low = 0xffffffffu, high = 0;
    from.each([&](int i, u32 key) {
        if (!kept.holds(i, key)) return;
        const int own_bin = bins(key);
        if (own_bin == bin) {
            const u32 at = atomicAdd(&s.filled, 1u);
            if (at < THREADS) s.candidates[at] = {key, from.token(i)};
            low = min(low, key), high = max(high, key);
        } else if (own_bin < bin) {
            const u32 at = atomicAdd(&s.filled_above, 1u);
            if (at < THREADS) s.above[at] = {key, from.token(i)};
        }
    });
    low = ~(u32)largest(~low, s), high = (u32)largest(high, s);
    find_threshold(low, high, missing, from, kept, bins, bin, measure, s);
    const u32 threshold = s.threshold;
    const u64 one = measure(threshold), ties = (missing - s.better + one - 1) / one;
    const bool all_equals = ties == s.equals;
    if (s.filled + s.filled_above <= THREADS) {
        row = listed(s);
        kept = {threshold, (int)largest(t < row.size && key_of(s.logits[t]) == threshold ? t : 0, s)};
    } else {
        kept = {threshold, threshold == kept.threshold ? kept.last_tie : from.size - 1};
    }
    if (all_equals) return kept;
    const Row now = row;
    const auto tie = [&](int i, u32 key) { return (u64)(key == threshold && i <= kept.last_tie); };
    return {threshold, locate(now, tie, [&](u64) { return ties - 1; }, 0, s)};
}
