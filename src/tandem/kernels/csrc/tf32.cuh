// Products of fp32 factors on the matrix unit in tf32: each factor in two parts, high and low, of which the three larger
// products are added up in fp32. What is left out is 2^-22 of a term, 2^-20 at most.

template <int N>
struct Parts {
    unsigned high[N], low[N];

    __device__ __forceinline__ explicit Parts(const float (&x)[N]) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            high[i] = __float_as_uint(x[i]) & 0xffffe000u;  // the digits that the matrix unit sees
            low[i] = __float_as_uint(x[i] - __uint_as_float(high[i]));
        }
    }
};

// c [16, 8] += a [16, 8] b [8, 8]. With lane = 4 g + t: a is (g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4), b is (t, g),
// (t + 4, g), c is (g, 2 t), (g, 2 t + 1), (g + 8, 2 t), (g + 8, 2 t + 1).
__device__ __forceinline__ void mma_tf32(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ void multiply(float (&c)[4], const Parts<4>& a, const Parts<2>& b) {
    mma_tf32(c, a.low, b.high);
    mma_tf32(c, a.high, b.low);
    mma_tf32(c, a.high, b.high);
}

// The same into three sums, the largest product first: they do not wait for each other.
__device__ __forceinline__ void multiply_apart(float (&c)[3][4], const Parts<4>& a, const Parts<2>& b) {
    mma_tf32(c[0], a.high, b.high);
    mma_tf32(c[1], a.high, b.low);
    mma_tf32(c[2], a.low, b.high);
}
