// 16 lanes without vector instructions: the plain statement of what every other simd_*.h does.
// Included by one file only, which puts it into its own unnamed namespace.

#define HOTSET_SIMD static inline

struct Simd {
  struct Vec {
    float lane[16];
  };
  struct IVec {
    std::uint32_t lane[16];
  };
  static constexpr int kMatmulRows = 4;
  static constexpr int kFloatPanels = 1;
  static constexpr int kAttentionRows = 2;
  static constexpr int kAttentionCols = 2;
  static constexpr int kScoreRows = 1;

  template <class F>
  HOTSET_SIMD Vec each(const F& f) {
    Vec out;
    for (int i = 0; i < 16; ++i) out.lane[i] = f(i);
    return out;
  }
  template <class F>
  HOTSET_SIMD IVec each_int(const F& f) {
    IVec out;
    for (int i = 0; i < 16; ++i) out.lane[i] = f(i);
    return out;
  }

  HOTSET_SIMD Vec set1(float value) {
    return each([&](int) { return value; });
  }
  HOTSET_SIMD Vec load(const float* from) {
    return each([&](int i) { return from[i]; });
  }
  HOTSET_SIMD Vec load_partial(const float* from, int count) {
    return each([&](int i) { return i < count ? from[i] : 0.0F; });
  }
  HOTSET_SIMD void store(float* to, Vec v) { __builtin_memcpy(to, v.lane, sizeof v.lane); }
  HOTSET_SIMD void store_partial(float* to, Vec v, int count) {
    for (int i = 0; i < count; ++i) to[i] = v.lane[i];
  }
  HOTSET_SIMD Vec load_f16(const std::uint8_t* from) {
    std::uint16_t half[16];
    __builtin_memcpy(half, from, sizeof half);
    return each([&](int i) { return f16_to_f32(half[i]); });
  }
  HOTSET_SIMD Vec load_bf16(const std::uint8_t* from) { return load_bf16_partial(from, 16); }
  HOTSET_SIMD Vec load_bf16_partial(const std::uint8_t* from, int count) {
    std::uint16_t half[16] = {};
    __builtin_memcpy(half, from, 2 * static_cast<std::size_t>(count));
    return each([&](int i) { return bf16_to_f32(half[i]); });
  }
  HOTSET_SIMD Vec load_e4m3(const std::uint8_t* from) {
    return each([&](int i) { return e4m3_to_f32(from[i]); });
  }
  HOTSET_SIMD Vec load_e4m3_partial(const std::uint8_t* from, int count) {
    return each([&](int i) { return i < count ? e4m3_to_f32(from[i]) : 0.0F; });
  }

  HOTSET_SIMD Vec add(Vec a, Vec b) {
    return each([&](int i) { return a.lane[i] + b.lane[i]; });
  }
  HOTSET_SIMD Vec sub(Vec a, Vec b) {
    return each([&](int i) { return a.lane[i] - b.lane[i]; });
  }
  HOTSET_SIMD Vec mul(Vec a, Vec b) {
    return each([&](int i) { return a.lane[i] * b.lane[i]; });
  }
  HOTSET_SIMD Vec div(Vec a, Vec b) {
    return each([&](int i) { return a.lane[i] / b.lane[i]; });
  }
  HOTSET_SIMD Vec fma(Vec a, Vec b, Vec c) {
    return each([&](int i) { return __builtin_fmaf(a.lane[i], b.lane[i], c.lane[i]); });
  }
  // The second operand when either is NaN.
  HOTSET_SIMD Vec max(Vec a, Vec b) {
    return each([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  HOTSET_SIMD Vec min(Vec a, Vec b) {
    return each([&](int i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  // a < b ? yes : no; no when either is NaN.
  HOTSET_SIMD Vec select_less(Vec a, Vec b, Vec yes, Vec no) {
    return each([&](int i) { return a.lane[i] < b.lane[i] ? yes.lane[i] : no.lane[i]; });
  }
  // Lanes from `count` on become `value`.
  HOTSET_SIMD Vec fill_from(Vec v, int count, float value) {
    return each([&](int i) { return i < count ? v.lane[i] : value; });
  }
  // Pairs (i, i + 8), (i, i + 4), (i, i + 2), (0, 1).
  HOTSET_SIMD float sum(Vec v) {
    for (int half = 8; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) v.lane[i] += v.lane[i + half];
    }
    return v.lane[0];
  }
  // Lane i is sum(v[i]).
  HOTSET_SIMD Vec sums(const Vec (&v)[16]) {
    return each([&](int i) { return sum(v[i]); });
  }
  // NaN lanes are ignored beside a number greater than -infinity.
  HOTSET_SIMD float max_lane(Vec v) {
    float out = -__builtin_inff();
    for (int i = 0; i < 16; ++i) out = v.lane[i] > out ? v.lane[i] : out;
    return out;
  }

  HOTSET_SIMD IVec int_zero() {
    return each_int([](int) { return 0U; });
  }
  HOTSET_SIMD IVec int_load(const std::uint8_t* from) {
    IVec out;
    __builtin_memcpy(out.lane, from, sizeof out.lane);
    return out;
  }
  HOTSET_SIMD IVec bits(Vec v) {
    IVec out;
    __builtin_memcpy(out.lane, v.lane, sizeof out.lane);
    return out;
  }
  HOTSET_SIMD Vec from_bits(IVec v) {
    Vec out;
    __builtin_memcpy(out.lane, v.lane, sizeof out.lane);
    return out;
  }
  HOTSET_SIMD IVec int_add(IVec a, std::uint32_t b) {
    return each_int([&](int i) { return a.lane[i] + b; });
  }
  HOTSET_SIMD IVec int_and(IVec a, std::uint32_t b) {
    return each_int([&](int i) { return a.lane[i] & b; });
  }
  HOTSET_SIMD IVec int_shift_right4(IVec a) {
    return each_int([](std::uint32_t x) { return x >> 4; }, a);
  }
  HOTSET_SIMD IVec int_shift_left23(IVec a) {
    return each_int([](std::uint32_t x) { return x << 23; }, a);
  }
  HOTSET_SIMD Vec to_float(IVec v) {
    return each([&](int i) { return static_cast<float>(static_cast<std::int32_t>(v.lane[i])); });
  }
  HOTSET_SIMD std::int32_t int_sum(IVec v) {
    std::uint32_t out = 0;
    for (int i = 0; i < 16; ++i) out += v.lane[i];
    return static_cast<std::int32_t>(out);
  }
  HOTSET_SIMD IVec int_max(IVec a, IVec b) {
    return each_int([&](int i) {
      return static_cast<std::int32_t>(a.lane[i]) > static_cast<std::int32_t>(b.lane[i]) ? a.lane[i] : b.lane[i];
    });
  }
  HOTSET_SIMD std::int32_t int_max_lane(IVec v) {
    std::int32_t out = static_cast<std::int32_t>(v.lane[0]);
    for (int i = 1; i < 16; ++i) {
      const auto x = static_cast<std::int32_t>(v.lane[i]);
      out = x > out ? x : out;
    }
    return out;
  }

  // Integers k = 16 * half ... of a group of activations.
  HOTSET_SIMD void store_integers(std::uint8_t* group, int /*group_size*/, int half, IVec v) {
    for (int i = 0; i < 16; ++i) {
      const auto x = static_cast<std::uint16_t>(v.lane[i]);
      __builtin_memcpy(group + 2 * (16 * half + i), &x, sizeof x);
    }
  }
  // sum over k of code[k] * integer[k], exact; a word holds 4 k.
  template <int kWords>
  HOTSET_SIMD IVec dot(const IVec (&codes)[kWords], const std::uint8_t* integers) {
    return each_int([&](int lane) {
      std::int32_t total = 0;
      for (int k = 0; k < 4 * kWords; ++k) {
        std::int16_t x;
        __builtin_memcpy(&x, integers + 2 * k, sizeof x);
        total += static_cast<std::int32_t>(codes[k / 4].lane[lane] >> (8 * (k % 4)) & 255U) * x;
      }
      return static_cast<std::uint32_t>(total);
    });
  }

 private:
  template <class F>
  HOTSET_SIMD IVec each_int(const F& f, IVec a) {
    return each_int([&](int i) { return f(a.lane[i]); });
  }
};
