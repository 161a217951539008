// Random requests, answered by sequences that stay resident or change their modes at random steps.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "tests/engine/mode_driver.h"

namespace hotset::testing {

struct RandomRequests {
  std::int64_t count = 3;
  std::int64_t least_prompt = 1, most_prompt = 200;
  std::int32_t least_tokens = 10, most_tokens = 50;
  std::size_t algorithms = 1;      // the driver's and its further ones
  std::int64_t most_resident = 0;  // tokens of a sequence of the last of several algorithms, which is never hot; 0: any
};

inline std::vector<std::int32_t> random_prompt(std::int64_t length, std::mt19937_64& random) {
  std::vector<std::int32_t> prompt(static_cast<std::size_t>(length));
  for (auto& token : prompt) token = static_cast<std::int32_t>(2 + random() % 510);  // of the fixtures' 512
  return prompt;
}

inline std::vector<ModeRequest> random_requests(std::mt19937_64& random, const RandomRequests& wanted) {
  const auto between = [&](std::int64_t least, std::int64_t most) {
    return least + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most - least + 1));
  };
  std::vector<ModeRequest> requests(static_cast<std::size_t>(wanted.count));
  for (ModeRequest& request : requests) {
    request.prompt = random_prompt(between(wanted.least_prompt, wanted.most_prompt), random);
    request.new_tokens = static_cast<std::int32_t>(between(wanted.least_tokens, wanted.most_tokens));
    request.algorithm = random() % wanted.algorithms;
    if (wanted.most_resident > 0 && wanted.algorithms > 1 && request.algorithm + 1 == wanted.algorithms) {
      const auto most = static_cast<std::size_t>(wanted.most_resident - request.new_tokens);
      request.prompt.resize(std::min(request.prompt.size(), most));
    }
  }
  return requests;
}

inline std::vector<ModeAnswer> run_resident(ModeDriver& driver, const std::vector<ModeRequest>& requests) {
  driver.clear();
  for (const ModeRequest& request : requests) driver.add(request);
  for (auto& sequence : driver.sequences()) driver.move(sequence, sparse::KvMode::kResident);
  while (!driver.done()) driver.step();
  for (const auto& sequence : driver.sequences()) EXPECT_EQ(sequence.error, "");
  return driver.answers();
}

// Bit for bit; else says where they part first.
inline ::testing::AssertionResult same_answers(const std::vector<ModeAnswer>& got,
                                               const std::vector<ModeAnswer>& wanted) {
  if (got.size() != wanted.size()) return ::testing::AssertionFailure() << got.size() << " answers";
  for (std::size_t i = 0; i < got.size(); ++i) {
    const ModeAnswer& one = got[i];
    const ModeAnswer& other = wanted[i];
    if (one == other) continue;
    const std::size_t both = std::min(one.tokens.size(), other.tokens.size());
    std::size_t t = 0;
    while (t < both && one.tokens[t] == other.tokens[t] && one.logprobs[t] == other.logprobs[t]) ++t;
    if (t == both)
      return ::testing::AssertionFailure()
             << "answer " << i << ": " << one.tokens.size() << " tokens instead of " << other.tokens.size();
    return ::testing::AssertionFailure() << "answer " << i << ", token " << t << ": " << one.tokens[t] << " ("
                                         << one.logprobs[t] << ") instead of " << other.tokens[t] << " ("
                                         << other.logprobs[t] << "), difference "
                                         << one.logprobs[t] - other.logprobs[t];
  }
  return ::testing::AssertionSuccess();
}

struct Changes {
  int demoted = 0, promoted = 0, parked = 0, resumed = 0;
};

// Perhaps into another mode that the sequence may have and that fits.
inline void change_mode(ModeDriver& driver, ModeDriver::Sequence& sequence, std::mt19937_64& random, Changes& changes) {
  using sparse::KvMode;
  const KvMode before = sequence.mode;
  HS_CHECK(before != KvMode::kHot || driver.may_be_hot(sequence), "a sequence only grows");
  KvMode next = static_cast<KvMode>(random() % 3);
  if (next == KvMode::kHot && !driver.may_be_hot(sequence)) next = KvMode::kResident;
  if (!driver.fits(sequence, next)) return;
  driver.move(sequence, next);
  changes.demoted += before == KvMode::kResident && next == KvMode::kHot;
  changes.promoted += before == KvMode::kHot && next == KvMode::kResident;
  changes.parked += before != KvMode::kParked && next == KvMode::kParked;
  changes.resumed += before == KvMode::kParked && next != KvMode::kParked && sequence.position > 0;
}

// A request comes at about every second step; every sequence changes its mode in about one step of four. Pages of those
// that are finished serve the others.
inline std::vector<ModeAnswer> run_changing(ModeDriver& driver, const std::vector<ModeRequest>& requests,
                                            std::mt19937_64& random, Changes& changes) {
  constexpr int kMostSteps = 20'000;
  driver.clear();
  std::size_t come = 0;
  for (int step = 0; come < requests.size() || !driver.done(); ++step) {
    HS_CHECK(step < kMostSteps, "every sequence fits the pool in one of the modes that it may have");
    if (come < requests.size() && (come == 0 || random() % 2 == 0)) driver.add(requests[come++]);
    for (auto& sequence : driver.sequences()) {
      if (!sequence.done()) {
        if (random() % 4 == 0) change_mode(driver, sequence, random, changes);
      } else if (sequence.finished() && sequence.state != nullptr) {
        driver.release(sequence);
      }
    }
    driver.step();
  }
  return driver.answers();
}

}  // namespace hotset::testing
