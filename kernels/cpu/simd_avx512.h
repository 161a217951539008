// 16 lanes as one AVX-512 register. See simd_scalar.h for what each operation means. With HOTSET_SIMD_VNNI the integer
// dot product uses byte products, else 16-bit ones.
// Included by one file only, which puts it into its own unnamed namespace.

#define HOTSET_SIMD static inline __attribute__((always_inline))

struct Simd {
  using Vec = __m512;
  using IVec = __m512i;
  static constexpr int kMatmulRows = 8;
  static constexpr int kFloatPanels = 2;
  static constexpr int kAttentionRows = 4;
  static constexpr int kAttentionCols = 4;
  static constexpr int kScoreRows = 4;

  // 16 or more sets every lane, 0 or less none.
  HOTSET_SIMD __mmask16 lane_mask(int count) {
    return static_cast<__mmask16>(count >= 16 ? 0xffffU : count <= 0 ? 0U : (1U << count) - 1U);
  }

  HOTSET_SIMD Vec set1(float value) { return _mm512_set1_ps(value); }
  HOTSET_SIMD Vec load(const float* from) { return _mm512_loadu_ps(from); }
  HOTSET_SIMD Vec load_partial(const float* from, int count) { return _mm512_maskz_loadu_ps(lane_mask(count), from); }
  HOTSET_SIMD void store(float* to, Vec v) { _mm512_storeu_ps(to, v); }
  HOTSET_SIMD void store_partial(float* to, Vec v, int count) { _mm512_mask_storeu_ps(to, lane_mask(count), v); }
  HOTSET_SIMD Vec load_f16(const std::uint8_t* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  HOTSET_SIMD Vec widen_bf16(__m256i half) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  }
  HOTSET_SIMD Vec load_bf16(const std::uint8_t* from) {
    return widen_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  HOTSET_SIMD Vec load_bf16_partial(const std::uint8_t* from, int count) {
    return widen_bf16(_mm256_maskz_loadu_epi16(lane_mask(count), from));
  }
  // Shifted to where float16 has them, codes mean 2^-8 of their value; 0x7f alone is NaN in one format only.
  HOTSET_SIMD Vec widen_e4m3(__m128i codes) {
    const __m256i shifted = _mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7);
    const __m256i half = _mm256_and_si256(shifted, _mm256_set1_epi16(static_cast<short>(0xbf80)));
    const __m256i magnitude = _mm256_and_si256(shifted, _mm256_set1_epi16(0x3f80));
    const __mmask16 nan = _mm256_cmpeq_epi16_mask(magnitude, _mm256_set1_epi16(0x3f80));
    const __m256i bits = _mm256_mask_mov_epi16(half, nan, _mm256_set1_epi16(0x7e00));
    return _mm512_mul_ps(_mm512_cvtph_ps(bits), _mm512_set1_ps(0x1p8F));
  }
  HOTSET_SIMD Vec load_e4m3(const std::uint8_t* from) {
    return widen_e4m3(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  HOTSET_SIMD Vec load_e4m3_partial(const std::uint8_t* from, int count) {
    return widen_e4m3(_mm_maskz_loadu_epi8(lane_mask(count), from));
  }

  HOTSET_SIMD Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
  HOTSET_SIMD Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
  HOTSET_SIMD Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
  HOTSET_SIMD Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
  HOTSET_SIMD Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
  HOTSET_SIMD Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
  HOTSET_SIMD Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
  HOTSET_SIMD Vec select_less(Vec a, Vec b, Vec yes, Vec no) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes);
  }
  HOTSET_SIMD Vec fill_from(Vec v, int count, float value) {
    return _mm512_mask_blend_ps(lane_mask(count), _mm512_set1_ps(value), v);
  }
  HOTSET_SIMD float sum(Vec v) {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  // The same additions as sum(), of 16 vectors at a time: each step adds the halves of two vectors into one.
  HOTSET_SIMD Vec add_eights(Vec a, Vec b) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
  }
  HOTSET_SIMD Vec add_fours(Vec a, Vec b) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
  }
  HOTSET_SIMD Vec add_twos(Vec a, Vec b) {
    return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
  }
  HOTSET_SIMD Vec add_ones(Vec a, Vec b) {
    return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd));
  }
  HOTSET_SIMD Vec sums(const Vec (&v)[16]) {
    Vec four[4];  // four[j]: what is left of v[j], v[j + 4], v[j + 8] and v[j + 12], 4 lanes each
    for (int j = 0; j < 4; ++j) four[j] = add_fours(add_eights(v[j], v[j + 4]), add_eights(v[j + 8], v[j + 12]));
    return add_ones(add_twos(four[0], four[1]), add_twos(four[2], four[3]));
  }
  HOTSET_SIMD float max_lane(Vec v) {
    v = _mm512_max_ps(v, _mm512_set1_ps(-__builtin_inff()));
    const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
  }

  HOTSET_SIMD IVec int_zero() { return _mm512_setzero_si512(); }
  HOTSET_SIMD IVec int_load(const std::uint8_t* from) { return _mm512_loadu_si512(from); }
  HOTSET_SIMD IVec bits(Vec v) { return _mm512_castps_si512(v); }
  HOTSET_SIMD Vec from_bits(IVec v) { return _mm512_castsi512_ps(v); }
  HOTSET_SIMD IVec int_add(IVec a, std::uint32_t b) {
    return _mm512_add_epi32(a, _mm512_set1_epi32(static_cast<int>(b)));
  }
  HOTSET_SIMD IVec int_and(IVec a, std::uint32_t b) {
    return _mm512_and_si512(a, _mm512_set1_epi32(static_cast<int>(b)));
  }
  HOTSET_SIMD IVec int_shift_right4(IVec a) { return _mm512_srli_epi32(a, 4); }
  HOTSET_SIMD IVec int_shift_left23(IVec a) { return _mm512_slli_epi32(a, 23); }
  HOTSET_SIMD Vec to_float(IVec v) { return _mm512_cvtepi32_ps(v); }
  HOTSET_SIMD std::int32_t int_sum(IVec v) { return _mm512_reduce_add_epi32(v); }
  HOTSET_SIMD IVec int_max(IVec a, IVec b) { return _mm512_max_epi32(a, b); }
  HOTSET_SIMD std::int32_t int_max_lane(IVec v) { return _mm512_reduce_max_epi32(v); }

  HOTSET_SIMD IVec broadcast_word(const std::uint8_t* from) {
    int word;
    __builtin_memcpy(&word, from, sizeof word);
    return _mm512_set1_epi32(word);
  }
#if defined(HOTSET_SIMD_VNNI)
  // Upper signed bytes of the whole group, then lower signed bytes: integer = 256 * upper + lower.
  HOTSET_SIMD void store_integers(std::uint8_t* group, int group_size, int half, IVec v) {
    const IVec upper = _mm512_srai_epi32(_mm512_add_epi32(v, _mm512_set1_epi32(128)), 8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(group + 16 * half), _mm512_cvtepi32_epi8(upper));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(group + group_size + 16 * half), _mm512_cvtepi32_epi8(v));
  }
  template <int kWords>
  HOTSET_SIMD IVec dot(const IVec (&codes)[kWords], const std::uint8_t* integers) {
    IVec upper = int_zero();
    IVec lower = int_zero();
#pragma GCC unroll 8
    for (int w = 0; w < kWords; ++w) {
      upper = _mm512_dpbusd_epi32(upper, codes[w], broadcast_word(integers + 4 * w));
      lower = _mm512_dpbusd_epi32(lower, codes[w], broadcast_word(integers + 4 * (kWords + w)));
    }
    return _mm512_add_epi32(_mm512_slli_epi32(upper, 8), lower);
  }
#else
  // 16-bit integers, each 4 k as (k0, k2), (k1, k3): even bytes of a code word meet the first pair, odd ones the
  // second.
  HOTSET_SIMD void store_integers(std::uint8_t* group, int /*group_size*/, int half, IVec v) {
    const __m256i ordered = _mm512_cvtepi32_epi16(v);
    const __m256i pairs = _mm256_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15,  //
                                           0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(group + 32 * half), _mm256_shuffle_epi8(ordered, pairs));
  }
  template <int kWords>
  HOTSET_SIMD IVec dot(const IVec (&codes)[kWords], const std::uint8_t* integers) {
    IVec even = int_zero();
    IVec odd = int_zero();
#pragma GCC unroll 8
    for (int w = 0; w < kWords; ++w) {
      const IVec low_bytes = _mm512_and_si512(codes[w], _mm512_set1_epi16(255));
      const IVec high_bytes = _mm512_srli_epi16(codes[w], 8);
      even = _mm512_add_epi32(even, _mm512_madd_epi16(low_bytes, broadcast_word(integers + 8 * w)));
      odd = _mm512_add_epi32(odd, _mm512_madd_epi16(high_bytes, broadcast_word(integers + 8 * w + 4)));
    }
    return _mm512_add_epi32(even, odd);
  }
#endif
};
