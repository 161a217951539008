// Matrix products on panels. Included by the isa_*.cpp files inside their unnamed namespace, after `Simd`.
//
// Float weights: y = fma(w[k], x[k], y), k ascending, one accumulator per output.
// Quantised weights: the activations of a group become 16-bit integers (|i| <= 32639, so that both bytes are signed);
// sum(code * i) is exact in 32 bits (255 * 32639 * 32 < 2^31), then, groups ascending,
//   y = fma(scale, float(sum(code * i)) * x_scale, y);  y = fma(offset, x_scale * sum(i), y).
// Rounding an activation costs at most max|x of its group| / 65278, so
//   |y error| <= sum over groups of max|x| / 65278 * sum|w|, plus the float32 roundings of the sums.

#define HOTSET_UNROLL _Pragma("GCC unroll 16")

constexpr int kIntegerLimit = 32639;     // 127 * 256 + 127
constexpr float kTinyGroup = 0x1p-100F;  // groups below count as zero: their scale's inverse would overflow

template <int kGroup>
HOTSET_SIMD void quantize_group(const float* x, std::uint8_t* integers, float* scale, float* sum) {
  constexpr int kHalves = kGroup / 16;
  constexpr std::uint32_t kMagnitude = 0x7fffffffU;
  constexpr float kRounder = 12582912.0F;  // 1.5 * 2^23: adding it rounds to nearest even and leaves the integer below
  const std::uint32_t rounder_bits = bits_from_float(kRounder);

  Simd::IVec magnitude = Simd::int_and(Simd::bits(Simd::load(x)), kMagnitude);
  if constexpr (kHalves == 2) {
    magnitude = Simd::int_max(magnitude, Simd::int_and(Simd::bits(Simd::load(x + 16)), kMagnitude));
  }
  const float largest = float_from_bits(static_cast<std::uint32_t>(Simd::int_max_lane(magnitude)));
  const bool finite = largest < __builtin_inff();  // false for NaN too
  const bool usable = finite && largest >= kTinyGroup;
  const float factor = usable ? static_cast<float>(kIntegerLimit) / largest : 0.0F;
  *scale = usable ? largest / static_cast<float>(kIntegerLimit) : finite ? 0.0F : __builtin_nanf("");

  std::int32_t total = 0;
  for (int half = 0; half < kHalves; ++half) {
    Simd::IVec rounded = Simd::int_zero();
    if (usable) {
      const Simd::Vec scaled = Simd::mul(Simd::load(x + 16 * half), Simd::set1(factor));
      rounded = Simd::int_add(Simd::bits(Simd::add(scaled, Simd::set1(kRounder))), 0U - rounder_bits);
    }
    Simd::store_integers(integers, kGroup, half, rounded);
    total += Simd::int_sum(rounded);
  }
  *sum = *scale * static_cast<float>(total);
}

void quantize_row(const float* x, std::int64_t cols, int group, const QuantizedRows& out) {
  for (std::int64_t g = 0; g < cols / group; ++g) {
    if (group == 32) {
      quantize_group<32>(x + 32 * g, out.integers + 64 * g, out.scales + g, out.sums + g);
    } else {
      quantize_group<16>(x + 16 * g, out.integers + 32 * g, out.scales + g, out.sums + g);
    }
  }
}

// Writes one vector of outputs: bias and the old value are added after the sum.
HOTSET_SIMD void store_output(const MatmulTask& task, std::int64_t row, std::int64_t panel, Simd::Vec y) {
  const std::int64_t channel = panel * kLanes;
  const std::int64_t left = task.weight.rows - channel;
  float* out = task.y + row * task.y_stride + channel;
  if (left >= kLanes) {
    if (task.bias != nullptr) y = Simd::add(y, Simd::load(task.bias + channel));
    if (task.accumulate) y = Simd::add(y, Simd::load(out));
    Simd::store(out, y);
    return;
  }
  const auto count = static_cast<int>(left);
  if (task.bias != nullptr) y = Simd::add(y, Simd::load_partial(task.bias + channel, count));
  if (task.accumulate) y = Simd::add(y, Simd::load_partial(out, count));
  Simd::store_partial(out, y, count);
}

template <int kBits, int kGroup, bool kScale16>
struct QuantizedTiles {
  static constexpr int kWords = kGroup / 4;
  static constexpr int kScaleBytes = kLanes * (kScale16 ? 2 : 4);
  static constexpr int kPrefetchBytes = 4096;
  static constexpr int kGroupBytes = 2 * kScaleBytes + kLanes * kGroup * kBits / 8;

  HOTSET_SIMD Simd::Vec load_scale(const std::uint8_t* from) {
    if constexpr (kScale16) {
      return Simd::load_f16(from);
    } else {
      return Simd::from_bits(Simd::int_load(from));
    }
  }
  // With few rows the product runs at the speed of memory, which the processor's own prefetching does not reach.
  HOTSET_SIMD void prefetch_group(const std::uint8_t* at) {
    HOTSET_UNROLL
    for (int line = 0; line < kGroupBytes / 64; ++line) __builtin_prefetch(at + kPrefetchBytes + 64 * line, 0, 2);
  }
  HOTSET_SIMD void load_codes(const std::uint8_t* from, Simd::IVec (&codes)[kWords]) {
    if constexpr (kBits == 8) {
      HOTSET_UNROLL
      for (int w = 0; w < kWords; ++w) codes[w] = Simd::int_load(from + 64 * w);
    } else {
      HOTSET_UNROLL
      for (int w = 0; w < kWords / 2; ++w) {
        const Simd::IVec both = Simd::int_load(from + 64 * w);
        codes[w] = Simd::int_and(both, 0x0f0f0f0fU);
        codes[w + kWords / 2] = Simd::int_and(Simd::int_shift_right4(both), 0x0f0f0f0fU);
      }
    }
  }

  template <int kRows, int kPanels>
  static void run(const MatmulTask& task, std::int64_t row, std::int64_t panel) {
    const std::int64_t cols = task.weight.cols;
    const std::int64_t groups = cols / kGroup;
    const std::uint8_t* weight = task.weight.data + panel * task.weight.panel_bytes;
    const std::uint8_t* integers = task.quantized.integers + row * 2 * cols;
    const float* scales = task.quantized.scales + row * groups;
    const float* sums = task.quantized.sums + row * groups;
    Simd::Vec y[kRows][kPanels];
    HOTSET_UNROLL
    for (int r = 0; r < kRows; ++r) {
      HOTSET_UNROLL
      for (int p = 0; p < kPanels; ++p) y[r][p] = Simd::set1(0.0F);
    }
    for (std::int64_t g = 0; g < groups; ++g) {
      HOTSET_UNROLL
      for (int p = 0; p < kPanels; ++p) {
        const std::uint8_t* at = weight + p * task.weight.panel_bytes + g * kGroupBytes;
        if constexpr (kRows <= 4) prefetch_group(at);
        const Simd::Vec scale = load_scale(at);
        const Simd::Vec offset = load_scale(at + kScaleBytes);
        Simd::IVec codes[kWords];
        load_codes(at + 2 * kScaleBytes, codes);
        HOTSET_UNROLL
        for (int r = 0; r < kRows; ++r) {
          const Simd::IVec dot = Simd::dot<kWords>(codes, integers + r * 2 * cols + g * 2 * kGroup);
          const Simd::Vec product = Simd::mul(Simd::to_float(dot), Simd::set1(scales[r * groups + g]));
          y[r][p] = Simd::fma(scale, product, y[r][p]);
          y[r][p] = Simd::fma(offset, Simd::set1(sums[r * groups + g]), y[r][p]);
        }
      }
    }
    HOTSET_UNROLL
    for (int r = 0; r < kRows; ++r) {
      HOTSET_UNROLL
      for (int p = 0; p < kPanels; ++p) store_output(task, row + r, panel + p, y[r][p]);
    }
  }
};

template <PanelKind kKind>
struct FloatTiles {
  static constexpr int kBytes = kLanes * (kKind == PanelKind::kF32 ? 4 : 2);

  HOTSET_SIMD Simd::Vec load(const std::uint8_t* from) {
    if constexpr (kKind == PanelKind::kF32) {
      return Simd::from_bits(Simd::int_load(from));
    } else if constexpr (kKind == PanelKind::kF16) {
      return Simd::load_f16(from);
    } else {
      return Simd::load_bf16(from);
    }
  }

  template <int kRows, int kPanels>
  static void run(const MatmulTask& task, std::int64_t row, std::int64_t panel) {
    const std::int64_t cols = task.weight.cols;
    const std::uint8_t* weight = task.weight.data + panel * task.weight.panel_bytes;
    const float* x = task.x + row * task.x_stride;
    Simd::Vec y[kRows][kPanels];
    HOTSET_UNROLL
    for (int r = 0; r < kRows; ++r) {
      HOTSET_UNROLL
      for (int p = 0; p < kPanels; ++p) y[r][p] = Simd::set1(0.0F);
    }
    for (std::int64_t k = 0; k < cols; ++k) {
      Simd::Vec w[kPanels];
      HOTSET_UNROLL
      for (int p = 0; p < kPanels; ++p) w[p] = load(weight + p * task.weight.panel_bytes + k * kBytes);
      HOTSET_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const Simd::Vec value = Simd::set1(x[r * task.x_stride + k]);
        HOTSET_UNROLL
        for (int p = 0; p < kPanels; ++p) y[r][p] = Simd::fma(w[p], value, y[r][p]);
      }
    }
    HOTSET_UNROLL
    for (int r = 0; r < kRows; ++r) {
      HOTSET_UNROLL
      for (int p = 0; p < kPanels; ++p) store_output(task, row + r, panel + p, y[r][p]);
    }
  }
};

// All rows of the task from `row` on, in tiles of kRows, then of half as many, and so on.
template <class Tiles, int kRows, int kPanels>
void sweep_rows(const MatmulTask& task, std::int64_t row, std::int64_t panel) {
  for (; row + kRows <= task.row_end; row += kRows) Tiles::template run<kRows, kPanels>(task, row, panel);
  if constexpr (kRows > 1) sweep_rows<Tiles, kRows / 2, kPanels>(task, row, panel);
}

// The panel stays in the first-level cache while the rows stream.
template <class Tiles, int kRows, int kPanels>
void sweep_panels(const MatmulTask& task) {
  std::int64_t panel = task.panel_begin;
  for (; panel + kPanels <= task.panel_end; panel += kPanels) {
    sweep_rows<Tiles, kRows, kPanels>(task, task.row_begin, panel);
  }
  if constexpr (kPanels > 1) {
    for (; panel < task.panel_end; ++panel) sweep_rows<Tiles, kRows, 1>(task, task.row_begin, panel);
  }
}

template <int kBits, int kGroup, bool kScale16>
void quantized_matmul(const MatmulTask& task) {
  using Tiles = QuantizedTiles<kBits, kGroup, kScale16>;
  sweep_panels<Tiles, Simd::kMatmulRows, 1>(task);
}

template <PanelKind kKind>
void float_matmul(const MatmulTask& task) {
  if (task.row_end - task.row_begin < 2) return sweep_panels<FloatTiles<kKind>, 1, 4>(task);
  sweep_panels<FloatTiles<kKind>, Simd::kMatmulRows, Simd::kFloatPanels>(task);
}

void matmul(const MatmulTask& task) {
  switch (task.weight.kind) {
    case PanelKind::kF32: return float_matmul<PanelKind::kF32>(task);
    case PanelKind::kF16: return float_matmul<PanelKind::kF16>(task);
    case PanelKind::kBF16: return float_matmul<PanelKind::kBF16>(task);
    case PanelKind::kCode4Scale16: return quantized_matmul<4, 32, true>(task);
    case PanelKind::kCode4Scale32: return quantized_matmul<4, 32, false>(task);
    case PanelKind::kCode8Scale16: return quantized_matmul<8, 32, true>(task);
    case PanelKind::kCode8Scale32: return quantized_matmul<8, 32, false>(task);
    case PanelKind::kCode8Group16: return quantized_matmul<8, 16, false>(task);
  }
}
