// Leaves a sublayer of a prefill chunk and projects the new streams for the site after it, while they are at hand.
//
// The projection runs on the matrix unit (tf32.cuh). A block keeps the mixer of its columns in shared memory and goes
// through many rows. A row's bits depend on that row alone.

#include "../../exl3/csrc/exl3.cuh"
#include "../../csrc/tf32.cuh"
#include "coefficients.cuh"

#define SLICE 128                    // columns of a block
#define PITCH (STREAMS * SLICE + 8)  // floats between rows: eight lanes' pairs, or 32 lanes' fours, lie in different banks
#define WARPS 8
#define ROWS 16      // of a block at a time, two a warp
#define OWN 4        // neighbouring columns of a lane
#define TOGETHER 5   // choices whose outputs are asked for at once

struct Memory {
    float mixer[MIXES][PITCH];
    float streams[ROWS][PITCH];
    float sums[WARPS][ROWS][MIXES];
};

// A sublayer's output y fp16 [pairs, D]: for each row a weighted sum over `choices` pairs, at most 32.
struct Sublayer {
    const __half* y;
    const int* row_pair;      // [rows, choices]; null: the row itself
    const float* row_weight;  // [rows, choices]; null: 1
    int choices;

    // What lane c is to know of choice c of two rows, long before they are summed.
    __device__ __forceinline__ void ask(int (&pair)[2], float (&weight)[2], const int (&rows)[2]) const {
        const int lane = threadIdx.x & 31;
        if (lane >= choices) return;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const size_t at = (size_t)rows[h] * choices + lane;
            pair[h] = row_pair ? row_pair[at] : rows[h];
            weight[h] = row_weight ? row_weight[at] : 1.0f;
        }
    }

    // Columns d .. d + 3 of two rows.
    __device__ __forceinline__ void sum(float (&output)[2][OWN], const int (&pair)[2], const float (&weight)[2], int d,
                                        int D) const {
        for (int begin = 0; begin < choices; begin += TOGETHER) {
            uint2 packed[2][TOGETHER];
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int i = 0; i < TOGETHER; i++) {
                    const size_t from = __shfl_sync(0xffffffffu, pair[h], begin + i);
                    packed[h][i] = begin + i < choices ? *(const uint2*)(y + from * D + d) : make_uint2(0, 0);
                }
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int i = 0; i < TOGETHER; i++) {
                    const float w = __shfl_sync(0xffffffffu, weight[h], begin + i);
                    const float4 v = factors(packed[h][i]);
                    output[h][0] = fmaf(w, v.x, output[h][0]);
                    output[h][1] = fmaf(w, v.y, output[h][1]);
                    output[h][2] = fmaf(w, v.z, output[h][2]);
                    output[h][3] = fmaf(w, v.w, output[h][3]);
                }
        }
    }
};

// A row's streams after a sublayer that gave `output`, in place; as leave_chunk has them.
__device__ __forceinline__ void leave(float (&x)[STREAMS][OWN], const float (&output)[OWN], const float* coefficients) {
    float post[STREAMS], mix[STREAMS][STREAMS];
    *(float4*)post = *(const float4*)(coefficients + 4);
#pragma unroll
    for (int o = 0; o < STREAMS; o++) *(float4*)mix[o] = *(const float4*)(coefficients + 8 + 4 * o);
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        float next[STREAMS];
#pragma unroll
        for (int s = 0; s < STREAMS; s++) {
            next[s] = post[s] * output[i];
#pragma unroll
            for (int o = 0; o < STREAMS; o++) next[s] += mix[o][s] * x[o][i];
        }
#pragma unroll
        for (int s = 0; s < STREAMS; s++) x[s][i] = next[s];
    }
}

// One warp: 16 rows times the mixer over half of a stream's columns. Its k-th product of eight columns has lane 4 r + q
// look after columns 2 q and 2 q + 1 of the rows r and r + 8, and of the mixer's row r of eight.
__device__ __forceinline__ void project(const Memory& memory, float (&sums)[MIXES / 8][4]) {
    const int lane = threadIdx.x & 31, r = lane >> 2, base = (threadIdx.x >> 5) * (SLICE / 2) + 2 * (lane & 3);
#pragma unroll
    for (int k = 0; k < SLICE / 2; k += 8) {
        const float2 upper = *(const float2*)&memory.streams[r][base + k];
        const float2 lower = *(const float2*)&memory.streams[r + 8][base + k];
        const Parts<4> own({upper.x, lower.x, upper.y, lower.y});
#pragma unroll
        for (int n = 0; n < MIXES / 8; n++) {
            const float2 w = *(const float2*)&memory.mixer[8 * n + r][base + k];
            multiply(sums[n], own, Parts<2>({w.x, w.y}));
        }
    }
}

// streams fp32 [rows, 4, D], coefficients fp32 [rows, 24]; choices == 0: the streams begin as the embedding fp16 [V, D]
// of token_ids or, without one, stay as they came. mixer fp32 [24, 4 D]. Grid: (D / 128, some), 256 threads.
// -> streams, partial fp32 [rows, D / 128, 25]: 24 dot products and the sum of squares.
extern "C" __global__ void __launch_bounds__(32 * WARPS, 2)
    leave_and_project(float* streams, const float* coefficients, const __half* y, const int* row_pair,
                      const float* row_weight, const __half* embedding, const i64* token_ids, const float* mixer,
                      float* partial, int rows, int D, int choices) {
    extern __shared__ __align__(16) unsigned char bytes[];
    Memory& memory = *(Memory*)bytes;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, d = blockIdx.x * SLICE + OWN * lane;
    for (int line = warp; line < MIXES * STREAMS; line += WARPS)
        *(float4*)&memory.mixer[line / STREAMS][line % STREAMS * SLICE + OWN * lane] =
            *(const float4*)(mixer + (size_t)line * D + d);
    wait_for_earlier();
    const Sublayer from = {y, row_pair, row_weight, choices};
    float x[2][STREAMS][OWN], weight[2] = {0.0f, 0.0f};
    int own[2], pair[2] = {0, 0};
    const auto fetch = [&](int first) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            own[h] = min(first + 2 * warp + h, rows - 1);
            const float4 begin = embedding ? factors(embedding + (size_t)token_ids[own[h]] * D + d) : float4();
#pragma unroll
            for (int s = 0; s < STREAMS; s++)
                *(float4*)x[h][s] =
                    embedding ? begin : *(const float4*)(streams + ((size_t)own[h] * STREAMS + s) * D + d);
        }
        from.ask(pair, weight, own);
    };
    const int step = gridDim.y * ROWS;
    fetch(blockIdx.y * ROWS);
    for (int first = blockIdx.y * ROWS; first < rows; first += step) {
        float output[2][OWN] = {};
        if (choices) from.sum(output, pair, weight, d, D);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            if (choices) leave(x[h], output[h], coefficients + (size_t)own[h] * MIXES);
            float square = 0.0f;
            const bool live = first + 2 * warp + h < rows, changed = choices || embedding;
#pragma unroll
            for (int s = 0; s < STREAMS; s++) {
#pragma unroll
                for (int i = 0; i < OWN; i++) square = fmaf(x[h][s][i], x[h][s][i], square);
                *(float4*)&memory.streams[2 * warp + h][s * SLICE + OWN * lane] = *(const float4*)x[h][s];
                if (live && changed) *(float4*)(streams + ((size_t)own[h] * STREAMS + s) * D + d) = *(const float4*)x[h][s];
            }
            square = warp_sum(square);
            if (live && lane == 0) partial[((size_t)own[h] * gridDim.x + blockIdx.x) * PARTIAL + MIXES] = square;
        }
        __syncthreads();
        if (first + step < rows) fetch(first + step);
        float sums[MIXES / 8][4] = {};
        project(memory, sums);
#pragma unroll
        for (int n = 0; n < MIXES / 8; n++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                *(float2*)&memory.sums[warp][(lane >> 2) + 8 * h][8 * n + 2 * (lane & 3)] =
                    make_float2(sums[n][2 * h], sums[n][2 * h + 1]);
        __syncthreads();
        for (int i = threadIdx.x; i < ROWS * MIXES; i += 32 * WARPS) {
            const int row = first + i / MIXES;
            float sum = 0.0f;
#pragma unroll
            for (int w = 0; w < WARPS; w++) sum += memory.sums[w][i / MIXES][i % MIXES];
            if (row < rows) partial[((size_t)row * gridDim.x + blockIdx.x) * PARTIAL + i % MIXES] = sum;
        }
    }
}

// The slices' partial sums in their order -> projected fp32 [rows, 24], squares fp32 [rows]. Grid: ceil(rows / 8), 256
// threads, a warp a row.
extern "C" __global__ void join_projection(const float* partial, float* projected, float* squares, int rows, int slices) {
    wait_for_earlier();
    const int row = blockIdx.x * 8 + (threadIdx.x >> 5), m = threadIdx.x & 31;
    if (row >= rows || m > MIXES) return;
    const float* from = partial + (size_t)row * slices * PARTIAL + m;
    float sum = 0.0f;
#pragma unroll 8
    for (int i = 0; i < slices; i++) sum += from[i * PARTIAL];
    if (m == MIXES) squares[row] = sum;
    else projected[row * MIXES + m] = sum;
}
