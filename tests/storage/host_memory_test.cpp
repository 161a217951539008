#include "storage/host_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace hotset::storage {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

// A machine with 16 GiB available unless a test says otherwise.
class HostMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) / ("hotset_memory_" + std::to_string(getpid()) + "_" +
                                            testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(root_);
    write("proc/meminfo", "MemTotal:       67108864 kB\nMemFree:         1048576 kB\nMemAvailable:   16777216 kB\n");
  }
  void TearDown() override { fs::remove_all(root_); }

  void write(const std::string& path, const std::string& text) const {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  [[nodiscard]] Result<UsableMemory> read() const {
    return usable_memory({.proc = (root_ / "proc").string(), .cgroup = (root_ / "cgroup").string()});
  }

  fs::path root_;
};

TEST_F(HostMemoryTest, WithoutControlGroupsTheMachineDecides) {
  const UsableMemory memory = read().value();
  EXPECT_EQ(memory.bytes, 16 * kGiB);
  EXPECT_EQ(memory.available_bytes, 16 * kGiB);
  EXPECT_FALSE(memory.cgroup_bytes.has_value());
}

TEST_F(HostMemoryTest, ContainerWithItsOwnNamespace) {
  write("proc/self/cgroup", "0::/\n");
  write("cgroup/memory.max", "8589934592\n");
  write("cgroup/memory.current", "1073741824\n");
  write("cgroup/memory.stat", "anon 500\nfile 100\n");
  EXPECT_EQ(read().value().bytes, 7 * kGiB);
}

TEST_F(HostMemoryTest, PageCacheDoesNotCountAsUsed) {
  write("proc/self/cgroup", "0::/\n");
  write("cgroup/memory.max", "8589934592\n");
  write("cgroup/memory.current", "8589930496\n");
  // `file` holds shared memory too, which cannot be dropped: only the two lists count.
  write("cgroup/memory.stat",
        "anon 1\nfile 8589934592\ninactive_file 3221225472\nactive_file 1073741824\nworkingset_refault_file 7\n");
  EXPECT_EQ(read().value().bytes, 4 * kGiB + 4096);
}

TEST_F(HostMemoryTest, MaxIsNoLimit) {
  write("proc/self/cgroup", "0::/\n");
  write("cgroup/memory.max", "max\n");
  write("cgroup/memory.current", "1073741824\n");
  EXPECT_EQ(read().value().bytes, 16 * kGiB);
  EXPECT_FALSE(read().value().cgroup_bytes.has_value());
}

TEST_F(HostMemoryTest, ThrottlingLimitCounts) {
  write("proc/self/cgroup", "0::/\n");
  write("cgroup/memory.max", "max\n");
  write("cgroup/memory.high", "2147483648\n");
  write("cgroup/memory.current", "1073741824\n");
  EXPECT_EQ(read().value().bytes, kGiB);
}

TEST_F(HostMemoryTest, TheTightestGroupOnTheWayToTheRootDecides) {
  write("proc/self/cgroup", "0::/kubepods/pod1/engine\n");
  write("cgroup/kubepods/memory.max", "34359738368\n");
  write("cgroup/kubepods/memory.current", "1073741824\n");
  write("cgroup/kubepods/pod1/memory.max", "4294967296\n");
  write("cgroup/kubepods/pod1/memory.current", "3221225472\n");
  write("cgroup/kubepods/pod1/engine/memory.max", "8589934592\n");
  write("cgroup/kubepods/pod1/engine/memory.current", "1048576\n");
  EXPECT_EQ(read().value().bytes, kGiB);

  // The sibling is not on the way.
  write("cgroup/kubepods/pod2/memory.max", "1\n");
  EXPECT_EQ(read().value().bytes, kGiB);
}

TEST_F(HostMemoryTest, AGroupThatIsNotVisibleHereFallsBackToTheMountedOne) {
  write("proc/self/cgroup", "0::/system.slice/docker-0123.scope\n");
  write("cgroup/memory.max", "2147483648\n");
  write("cgroup/memory.current", "0\n");
  EXPECT_EQ(read().value().bytes, 2 * kGiB);
  // Outside of this process's namespace.
  write("proc/self/cgroup", "0::/../../other\n");
  EXPECT_EQ(read().value().bytes, 2 * kGiB);
}

TEST_F(HostMemoryTest, MoreUsedThanAllowedLeavesNothing) {
  write("proc/self/cgroup", "0::/\n");
  write("cgroup/memory.max", "1073741824\n");
  write("cgroup/memory.current", "2147483648\n");
  EXPECT_EQ(read().value().bytes, 0);
  // And more page cache than usage, as two files read at different moments may say, is not more room than the limit.
  write("cgroup/memory.stat", "inactive_file 9999999999\n");
  EXPECT_EQ(read().value().bytes, kGiB);
}

TEST_F(HostMemoryTest, VersionOne) {
  write("proc/self/cgroup", "12:cpu,cpuacct:/docker/ab\n4:memory:/docker/ab\n1:name=systemd:/docker/ab\n");
  write("cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("cgroup/memory/memory.usage_in_bytes", "5368709120\n");
  EXPECT_EQ(read().value().bytes, 16 * kGiB);
  write("cgroup/memory/docker/ab/memory.limit_in_bytes", "6442450944\n");
  write("cgroup/memory/docker/ab/memory.usage_in_bytes", "4294967296\n");
  write("cgroup/memory/docker/ab/memory.stat",
        "inactive_file 1\ntotal_inactive_file 1073741824\ntotal_active_file 0\nhierarchical_memory_limit 6442450944\n");
  EXPECT_EQ(read().value().bytes, 3 * kGiB);
}

TEST_F(HostMemoryTest, MixedSystemsUseTheVersionThatHasTheMemoryController) {
  write("proc/self/cgroup", "4:memory:/a\n0::/a\n");
  write("cgroup/memory/a/memory.limit_in_bytes", "3221225472\n");
  write("cgroup/memory/a/memory.usage_in_bytes", "0\n");
  write("cgroup/unified/a/cgroup.procs", "1\n");
  EXPECT_EQ(read().value().bytes, 3 * kGiB);
}

TEST_F(HostMemoryTest, MalformedFilesAreNoLimit) {
  for (const std::string text : {"", "\n", "-5\n", "many\n", "99999999999999999999999\n"}) {
    write("proc/self/cgroup", "nonsense\n0::/\n::\n7:memory\n");
    write("cgroup/memory.max", text);
    write("cgroup/memory.current", "1\n");
    EXPECT_EQ(read().value().bytes, 16 * kGiB) << text;
  }
}

TEST_F(HostMemoryTest, MissingFiles) {
  fs::remove(root_ / "proc/meminfo");
  const Result<UsableMemory> nothing = read();
  ASSERT_FALSE(nothing.ok());
  EXPECT_EQ(nothing.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(nothing.error().message.find("--host-kv"), std::string::npos);

  write("proc/self/cgroup", "0::/\n");
  write("cgroup/memory.max", "1073741824\n");
  EXPECT_EQ(read().value().bytes, kGiB);
  EXPECT_FALSE(read().value().available_bytes.has_value());

  // A kernel without MemAvailable.
  write("proc/meminfo", "MemTotal: 4096 kB\nMemFree: 1024 kB\n");
  EXPECT_EQ(read().value().bytes, 1024 * 1024);
}

TEST(HostMemory, ThisMachineAnswers) {
  const Result<UsableMemory> memory = usable_memory();
  ASSERT_TRUE(memory.ok()) << memory.error().message;
  EXPECT_GT(memory.value().bytes, 0);
}

}  // namespace
}  // namespace hotset::storage
