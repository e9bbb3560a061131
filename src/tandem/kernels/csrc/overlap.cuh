// A kernel may begin while the one before it still runs (programmatic dependent launch, sm_90 and later): it can
// fetch weights, and waits before it touches anything that a kernel before it writes. Without the hardware both
// are nothing.

__device__ __forceinline__ void let_next_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Returns once every earlier kernel has ended and its writes are visible.
__device__ __forceinline__ void wait_for_earlier() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
