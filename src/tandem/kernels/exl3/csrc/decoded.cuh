// EXL3 weights of any codebook and rate as fp16, in the order in which the matrix unit wants them.
//
// Lane t of a warp owns positions 8 t .. 8 t + 7 of a tile: exactly its part of two m16n8k16 B fragments. Rates are
// counted in half bits a weight (2 K), so that 1.5, 2.5 and 3.5 are whole numbers too; position p's window then ends
// (p + 1) * HALVES / 2 bits into the ring. A matrix that is not quantized lies in the same tiles at 16 bits a weight,
// position 2 i in the low half of word i: its windows are its weights.

#include "exl3.cuh"

#define CODEBOOK_3INST 0
#define CODEBOOK_MCG 1
#define CODEBOOK_MUL1 2
#define CODEBOOK_PLAIN 3

// What stands in FORMS as F(number, codebook, half bits); one module holds the forms of one stack.
#ifndef FORMS
#define FORMS F(0, CODEBOOK_MUL1, 6)
#endif

template <int HALVES>
struct Ring {
    static constexpr int words = 4 * HALVES;  // 32-bit words of a tile
    // Words a lane's eight windows reach into: 16 + 7 K bits, which for K = 3 and 4 begin too early in a word to pass
    // its neighbour's end; for 3.5 they do not.
    static constexpr int reach = HALVES == 32 ? 4 : HALVES == 7 || HALVES > 8 ? 3 : 2;
    static constexpr int size = HALVES == 32 ? 4 : 3;  // of the arrays that hold them
    int at[size], shift;

    __device__ __forceinline__ Ring() {
        const int start = 4 * (int)(threadIdx.x & 31) * HALVES + HALVES / 2 - 16;
        shift = start & 31;
#pragma unroll
        for (int i = 0; i < size; i++) at[i] = ((start >> 5) + i + words) % words;
    }
    __device__ __forceinline__ void load(u32 (&to)[size], const u32* tile) const {
#pragma unroll
        for (int i = 0; i < reach; i++) to[i] = __ldg(tile + at[i]);
    }
    // The same bits with the first window's first bit on top.
    __device__ __forceinline__ void align(u32 (&a)[size], const u32 (&from)[size]) const {
        if constexpr (HALVES == 32) {
#pragma unroll
            for (int i = 0; i < size; i++) a[i] = from[i];
        } else {
            a[0] = __funnelshift_l(from[1], from[0], shift);
            a[1] = reach == 3 ? __funnelshift_l(from[2], from[1], shift) : from[1] << shift;
            a[2] = reach == 3 ? from[2] << shift : 0u;
        }
    }
};

template <int HALVES, int P>
__device__ __forceinline__ u32 window(const u32 (&a)[3]) {
    constexpr int from = (P + 1) * HALVES / 2 - HALVES / 2, word = from / 32, offset = from % 32;
    if constexpr (offset + 16 <= 32) return (a[word] >> (16 - offset)) & 0xffffu;
    else return __funnelshift_l(a[word + 1], a[word], offset) >> 16;
}

// Two weights, the first in the low half. 3INST and MCG: the product's halves are two fp16, made small by the mask
// and added. MUL1: 1024 + the sum of the product's bytes, a fp16 bit pattern, through one fused multiply-add.
template <int CODEBOOK>
__device__ __forceinline__ u32 weights(u32 first, u32 second) {
    __half2 w;
    if constexpr (CODEBOOK == CODEBOOK_MUL1) {
        const u32 a = __dp4a(first * 0x83DCD12Du, 0x01010101u, 0x6400u);
        const u32 b = __dp4a(second * 0x83DCD12Du, 0x01010101u, 0x6400u);
        const u32 both = __byte_perm(a, b, 0x5410), scale = 0x1EEE1EEEu, bias = 0xC931C931u;
        w = __hfma2(*(const __half2*)&both, *(const __half2*)&scale, *(const __half2*)&bias);
    } else {
        u32 a = CODEBOOK == CODEBOOK_MCG ? first * 0xCBAC1FEDu : first * 89226354u + 64248484u;
        u32 b = CODEBOOK == CODEBOOK_MCG ? second * 0xCBAC1FEDu : second * 89226354u + 64248484u;
        a = (a & 0x8FFF8FFFu) ^ 0x3B603B60u;
        b = (b & 0x8FFF8FFFu) ^ 0x3B603B60u;
        const u32 low = __byte_perm(a, b, 0x5410), high = __byte_perm(a, b, 0x7632);
        w = __hadd2(*(const __half2*)&low, *(const __half2*)&high);
    }
    return *(const u32*)&w;
}

// A lane's weights: b[0], b[1] are the fragment of the tile's columns 0..7, b[2], b[3] that of 8..15.
template <int CODEBOOK, int HALVES>
__device__ __forceinline__ void decode(u32 (&b)[4], const u32 (&a)[Ring<HALVES>::size]) {
    if constexpr (CODEBOOK == CODEBOOK_PLAIN) {
#pragma unroll
        for (int i = 0; i < 4; i++) b[i] = a[i];
    } else {
        b[0] = weights<CODEBOOK>(window<HALVES, 0>(a), window<HALVES, 1>(a));
        b[1] = weights<CODEBOOK>(window<HALVES, 2>(a), window<HALVES, 3>(a));
        b[2] = weights<CODEBOOK>(window<HALVES, 4>(a), window<HALVES, 5>(a));
        b[3] = weights<CODEBOOK>(window<HALVES, 6>(a), window<HALVES, 7>(a));
    }
}

__device__ __forceinline__ void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
