// Element-wise work on rows. Included by the isa_*.cpp files inside their unnamed namespace, after `Simd`.

// e^x to about 1e-7 relative; NaN gives NaN, results below 2^-124 are zero. Cephes' expf polynomial.
HOTSET_SIMD Simd::Vec exp_lanes(Simd::Vec x) {
  constexpr float kRounder = 12582912.0F;  // 1.5 * 2^23
  const Simd::Vec rounder = Simd::set1(kRounder);
  x = Simd::min(Simd::set1(89.0F), Simd::max(Simd::set1(-90.0F), x));  // the second operand survives as NaN
  const Simd::Vec shifted = Simd::fma(x, Simd::set1(1.44269504F), rounder);
  const Simd::Vec n = Simd::sub(shifted, rounder);
  Simd::Vec r = Simd::fma(n, Simd::set1(-0.693359375F), x);
  r = Simd::fma(n, Simd::set1(2.12194440e-4F), r);
  Simd::Vec p = Simd::set1(1.9875691500e-4F);
  p = Simd::fma(p, r, Simd::set1(1.3981999507e-3F));
  p = Simd::fma(p, r, Simd::set1(8.3334519073e-3F));
  p = Simd::fma(p, r, Simd::set1(4.1665795894e-2F));
  p = Simd::fma(p, r, Simd::set1(1.6666665459e-1F));
  p = Simd::fma(p, r, Simd::set1(5.0000001201e-1F));
  p = Simd::fma(p, Simd::mul(r, r), Simd::add(r, Simd::set1(1.0F)));
  // 2^(n - 1) from its bits, then twice: n may be 128.
  const std::uint32_t to_exponent = 126U - bits_from_float(kRounder);
  const Simd::Vec half_power = Simd::from_bits(Simd::int_shift_left23(Simd::int_add(Simd::bits(shifted), to_exponent)));
  const Simd::Vec scaled = Simd::mul(p, half_power);
  return Simd::select_less(x, Simd::set1(-86.0F), Simd::set1(0.0F), Simd::add(scaled, scaled));
}

// Calls body(offset, count) for every 16 elements; count < 16 in the last one only.
template <class Body>
HOTSET_SIMD void for_lanes(std::int64_t width, const Body& body) {
  std::int64_t at = 0;
  for (; at + kLanes <= width; at += kLanes) body(at, kLanes);
  if (at < width) body(at, static_cast<int>(width - at));
}
HOTSET_SIMD Simd::Vec load_lanes(const float* from, int count) {
  return count == kLanes ? Simd::load(from) : Simd::load_partial(from, count);
}
HOTSET_SIMD void store_lanes(float* to, Simd::Vec v, int count) {
  if (count == kLanes) {
    Simd::store(to, v);
  } else {
    Simd::store_partial(to, v, count);
  }
}

void rms_norm_row(const float* in, const float* weight, float* out, std::int64_t width, float epsilon) {
  Simd::Vec squares = Simd::set1(0.0F);
  for_lanes(width, [&](std::int64_t at, int count) {
    const Simd::Vec x = load_lanes(in + at, count);
    squares = Simd::fma(x, x, squares);
  });
  const float mean = Simd::sum(squares) / static_cast<float>(width);
  const Simd::Vec factor = Simd::set1(1.0F / __builtin_sqrtf(mean + epsilon));
  for_lanes(width, [&](std::int64_t at, int count) {
    const Simd::Vec scaled = Simd::mul(load_lanes(in + at, count), factor);
    store_lanes(out + at, Simd::mul(scaled, load_lanes(weight + at, count)), count);
  });
}

// Two passes: the sum of squares of what is left without the mean loses nothing to a large mean.
void layer_norm_row(const float* in, const float* weight, const float* bias, float* out, std::int64_t width,
                    float epsilon) {
  Simd::Vec total = Simd::set1(0.0F);
  for_lanes(width, [&](std::int64_t at, int count) { total = Simd::add(total, load_lanes(in + at, count)); });
  const Simd::Vec mean = Simd::set1(Simd::sum(total) / static_cast<float>(width));
  Simd::Vec squares = Simd::set1(0.0F);
  for_lanes(width, [&](std::int64_t at, int count) {
    const Simd::Vec centred = Simd::fill_from(Simd::sub(load_lanes(in + at, count), mean), count, 0.0F);
    squares = Simd::fma(centred, centred, squares);
  });
  const float variance = Simd::sum(squares) / static_cast<float>(width);
  const Simd::Vec factor = Simd::set1(1.0F / __builtin_sqrtf(variance + epsilon));
  for_lanes(width, [&](std::int64_t at, int count) {
    const Simd::Vec scaled = Simd::mul(Simd::sub(load_lanes(in + at, count), mean), factor);
    store_lanes(out + at, Simd::fma(scaled, load_lanes(weight + at, count), load_lanes(bias + at, count)), count);
  });
}

void rope_row(float* x, const float* cos, const float* sin, std::int32_t half, std::int32_t heads,
              std::int32_t head_dim) {
  const Simd::Vec minus = Simd::set1(-1.0F);
  for (std::int64_t head = 0; head < heads; ++head) {
    float* first = x + head * head_dim;
    float* second = first + half;
    for_lanes(half, [&](std::int64_t at, int count) {
      const Simd::Vec a = load_lanes(first + at, count);
      const Simd::Vec b = load_lanes(second + at, count);
      const Simd::Vec c = load_lanes(cos + at, count);
      const Simd::Vec s = load_lanes(sin + at, count);
      store_lanes(first + at, Simd::fma(a, c, Simd::mul(minus, Simd::mul(b, s))), count);
      store_lanes(second + at, Simd::fma(b, c, Simd::mul(a, s)), count);
    });
  }
}

void silu_gate(const float* gate, const float* up, float* out, std::int64_t count_all) {
  const Simd::Vec one = Simd::set1(1.0F);
  for_lanes(count_all, [&](std::int64_t at, int count) {
    const Simd::Vec x = load_lanes(gate + at, count);
    const Simd::Vec down = Simd::add(one, exp_lanes(Simd::mul(x, Simd::set1(-1.0F))));
    store_lanes(out + at, Simd::mul(Simd::div(x, down), load_lanes(up + at, count)), count);
  });
}
