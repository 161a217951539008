// 16 lanes as two AVX2 registers. See simd_scalar.h for what each operation means.
// Included by one file only, which puts it into its own unnamed namespace.

#define HOTSET_SIMD static inline __attribute__((always_inline))

struct Simd {
  struct Vec {
    __m256 lo, hi;
  };
  struct IVec {
    __m256i lo, hi;
  };
  static constexpr int kMatmulRows = 2;
  static constexpr int kFloatPanels = 2;
  static constexpr int kAttentionRows = 2;
  static constexpr int kAttentionCols = 2;
  static constexpr int kScoreRows = 1;

  HOTSET_SIMD __m256i lane_mask(int count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }

  HOTSET_SIMD Vec set1(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
  HOTSET_SIMD Vec load(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
  HOTSET_SIMD Vec load_partial(const float* from, int count) {
    return {_mm256_maskload_ps(from, lane_mask(count)), _mm256_maskload_ps(from + 8, lane_mask(count - 8))};
  }
  HOTSET_SIMD void store(float* to, Vec v) {
    _mm256_storeu_ps(to, v.lo);
    _mm256_storeu_ps(to + 8, v.hi);
  }
  HOTSET_SIMD void store_partial(float* to, Vec v, int count) {
    _mm256_maskstore_ps(to, lane_mask(count), v.lo);
    _mm256_maskstore_ps(to + 8, lane_mask(count - 8), v.hi);
  }
  HOTSET_SIMD __m128i load8(const std::uint8_t* from) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  }
  HOTSET_SIMD Vec load_f16(const std::uint8_t* from) {
    return {_mm256_cvtph_ps(load8(from)), _mm256_cvtph_ps(load8(from + 16))};
  }
  HOTSET_SIMD __m256 widen_bf16(__m128i half) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
  }
  HOTSET_SIMD Vec load_bf16(const std::uint8_t* from) {
    return {widen_bf16(load8(from)), widen_bf16(load8(from + 16))};
  }
  HOTSET_SIMD Vec load_bf16_partial(const std::uint8_t* from, int count) {
    std::uint8_t half[32] = {};
    __builtin_memcpy(half, from, 2 * static_cast<std::size_t>(count));
    return load_bf16(half);
  }
  // Shifted to where float16 has them, codes mean 2^-8 of their value; 0x7f alone is NaN in one format only.
  HOTSET_SIMD Vec load_e4m3(const std::uint8_t* from) {
    const __m256i shifted = _mm256_slli_epi16(_mm256_cvtepi8_epi16(load8(from)), 7);
    const __m256i half = _mm256_and_si256(shifted, _mm256_set1_epi16(static_cast<short>(0xbf80)));
    const __m256i magnitude = _mm256_and_si256(shifted, _mm256_set1_epi16(0x3f80));
    const __m256i nan =
        _mm256_and_si256(_mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x3f80)), _mm256_set1_epi16(0x7e00));
    const __m256i bits = _mm256_or_si256(half, nan);
    const __m256 factor = _mm256_set1_ps(0x1p8F);
    return {_mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(bits)), factor),
            _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(bits, 1)), factor)};
  }
  HOTSET_SIMD Vec load_e4m3_partial(const std::uint8_t* from, int count) {
    std::uint8_t codes[16] = {};
    __builtin_memcpy(codes, from, static_cast<std::size_t>(count));
    return load_e4m3(codes);
  }

  HOTSET_SIMD Vec add(Vec a, Vec b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
  HOTSET_SIMD Vec sub(Vec a, Vec b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
  HOTSET_SIMD Vec mul(Vec a, Vec b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
  HOTSET_SIMD Vec div(Vec a, Vec b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
  HOTSET_SIMD Vec fma(Vec a, Vec b, Vec c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
  }
  HOTSET_SIMD Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
  HOTSET_SIMD Vec min(Vec a, Vec b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
  HOTSET_SIMD Vec select_less(Vec a, Vec b, Vec yes, Vec no) {
    return {_mm256_blendv_ps(no.lo, yes.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
            _mm256_blendv_ps(no.hi, yes.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
  }
  HOTSET_SIMD Vec fill_from(Vec v, int count, float value) {
    const __m256 fill = _mm256_set1_ps(value);
    return {_mm256_blendv_ps(fill, v.lo, _mm256_castsi256_ps(lane_mask(count))),
            _mm256_blendv_ps(fill, v.hi, _mm256_castsi256_ps(lane_mask(count - 8)))};
  }
  HOTSET_SIMD float sum(Vec v) {
    const __m256 eight = _mm256_add_ps(v.lo, v.hi);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  HOTSET_SIMD Vec sums(const Vec (&v)[16]) {
    float out[16];
    for (int i = 0; i < 16; ++i) out[i] = sum(v[i]);
    return load(out);
  }
  HOTSET_SIMD float max_lane(Vec v) {
    const __m256 least = _mm256_set1_ps(-__builtin_inff());
    const __m256 eight = _mm256_max_ps(_mm256_max_ps(v.lo, least), _mm256_max_ps(v.hi, least));
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
  }

  HOTSET_SIMD __m256i load32(const std::uint8_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  HOTSET_SIMD IVec int_zero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
  HOTSET_SIMD IVec int_load(const std::uint8_t* from) { return {load32(from), load32(from + 32)}; }
  HOTSET_SIMD IVec bits(Vec v) { return {_mm256_castps_si256(v.lo), _mm256_castps_si256(v.hi)}; }
  HOTSET_SIMD Vec from_bits(IVec v) { return {_mm256_castsi256_ps(v.lo), _mm256_castsi256_ps(v.hi)}; }
  HOTSET_SIMD IVec int_add(IVec a, std::uint32_t b) {
    const __m256i all = _mm256_set1_epi32(static_cast<int>(b));
    return {_mm256_add_epi32(a.lo, all), _mm256_add_epi32(a.hi, all)};
  }
  HOTSET_SIMD IVec int_and(IVec a, std::uint32_t b) {
    const __m256i all = _mm256_set1_epi32(static_cast<int>(b));
    return {_mm256_and_si256(a.lo, all), _mm256_and_si256(a.hi, all)};
  }
  HOTSET_SIMD IVec int_shift_right4(IVec a) { return {_mm256_srli_epi32(a.lo, 4), _mm256_srli_epi32(a.hi, 4)}; }
  HOTSET_SIMD IVec int_shift_left23(IVec a) { return {_mm256_slli_epi32(a.lo, 23), _mm256_slli_epi32(a.hi, 23)}; }
  HOTSET_SIMD Vec to_float(IVec v) { return {_mm256_cvtepi32_ps(v.lo), _mm256_cvtepi32_ps(v.hi)}; }
  HOTSET_SIMD std::int32_t int_sum(IVec v) {
    const __m256i eight = _mm256_add_epi32(v.lo, v.hi);
    const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    const __m128i two = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 1)));
  }
  HOTSET_SIMD IVec int_max(IVec a, IVec b) { return {_mm256_max_epi32(a.lo, b.lo), _mm256_max_epi32(a.hi, b.hi)}; }
  HOTSET_SIMD std::int32_t int_max_lane(IVec v) {
    const __m256i eight = _mm256_max_epi32(v.lo, v.hi);
    const __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    const __m128i two = _mm_max_epi32(four, _mm_unpackhi_epi64(four, four));
    return _mm_cvtsi128_si32(_mm_max_epi32(two, _mm_shuffle_epi32(two, 1)));
  }

  // 16-bit integers, each 4 k as (k0, k2), (k1, k3): even bytes of a code word meet the first pair, odd ones the
  // second.
  HOTSET_SIMD void store_integers(std::uint8_t* group, int /*group_size*/, int half, IVec v) {
    const __m256i mixed = _mm256_packs_epi32(v.lo, v.hi);
    const __m256i ordered = _mm256_permute4x64_epi64(mixed, _MM_SHUFFLE(3, 1, 2, 0));
    const __m256i pairs = _mm256_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15,  //
                                           0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(group + 32 * half), _mm256_shuffle_epi8(ordered, pairs));
  }
  HOTSET_SIMD __m256i broadcast_word(const std::uint8_t* from) {
    int word;
    __builtin_memcpy(&word, from, sizeof word);
    return _mm256_set1_epi32(word);
  }
  HOTSET_SIMD __m256i pair_products(__m256i codes, __m256i even, __m256i odd) {
    const __m256i low_bytes = _mm256_set1_epi16(255);
    return _mm256_add_epi32(_mm256_madd_epi16(_mm256_and_si256(codes, low_bytes), even),
                            _mm256_madd_epi16(_mm256_srli_epi16(codes, 8), odd));
  }
  template <int kWords>
  HOTSET_SIMD IVec dot(const IVec (&codes)[kWords], const std::uint8_t* integers) {
    IVec total = int_zero();
#pragma GCC unroll 8
    for (int w = 0; w < kWords; ++w) {
      const __m256i even = broadcast_word(integers + 8 * w);
      const __m256i odd = broadcast_word(integers + 8 * w + 4);
      total.lo = _mm256_add_epi32(total.lo, pair_products(codes[w].lo, even, odd));
      total.hi = _mm256_add_epi32(total.hi, pair_products(codes[w].hi, even, odd));
    }
    return total;
  }
};
