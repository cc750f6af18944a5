// Kernels in C++, called by compiled programs on CPUs through XLA's foreign function interface.

#include <cmath>
#include <cstdint>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

// One build for every x86 CPU: the loop is compiled twice, and the CPU decides which one runs.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define FOR_EACH_CPU __attribute__((target_clones("arch=x86-64-v3", "default")))
#else
#define FOR_EACH_CPU
#endif

// sum[t] = reward[t] + discount[t] * sum[t + 1], for `columns` independent columns.
//
// Rounded once, as XLA does: it contracts the product and the sum of the same loop.
FOR_EACH_CPU
static void DiscountedSums(const float* reward, const float* discount, float* sum, int64_t rows,
                           int64_t columns) {
  const int64_t last = (rows - 1) * columns;
  for (int64_t i = last; i < last + columns; ++i) {
    sum[i] = std::fma(discount[i], 0.0f, reward[i]);
  }
  for (int64_t row = last - columns; row >= 0; row -= columns) {
    const float* later = sum + row + columns;
    for (int64_t i = 0; i < columns; ++i) {
      sum[row + i] = std::fma(discount[row + i], later[i], reward[row + i]);
    }
  }
}

static ffi::Error Call(ffi::Buffer<ffi::F32> reward, ffi::Buffer<ffi::F32> discount,
                       ffi::ResultBuffer<ffi::F32> sum) {
  const auto shape = reward.dimensions();
  if (shape.size() == 0 || discount.element_count() != reward.element_count()) {
    return ffi::Error::InvalidArgument("discounted_sums: two arrays of one shape are needed");
  }
  if (reward.element_count() > 0) {
    const int64_t rows = shape[0];
    DiscountedSums(reward.typed_data(), discount.typed_data(), sum->typed_data(), rows,
                   static_cast<int64_t>(reward.element_count()) / rows);
  }
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(fragflow_discounted_sums, Call,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>());
