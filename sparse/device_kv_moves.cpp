// Rows and metadata pages between the tiers: which runs a range of rows is, and the copies of them.
#include <algorithm>
#include <numeric>

#include "core/check.h"
#include "kernels/cuda/page_pieces.h"
#include "sparse/device_kv.h"
#include "sparse/pinned_ids.h"

namespace hotset::sparse {

namespace cuda = kernels::cuda;

const std::int32_t* DeviceKv::host_pages_of(const SequenceKv& kv, std::int64_t first, std::int64_t end,
                                            cuda::PinnedBlock& block) const {
  const std::int64_t first_page = first / kPageTokens;
  const auto pages =
      std::span(kv.host_pages)
          .subspan(static_cast<std::size_t>(first_page), static_cast<std::size_t>(pages_for_tokens(end) - first_page));
  return keep_ids(pages, block) - first_page;
}

// Runs of at most a page, of every layer. Page lists are kept from the first page on that the rows need, and named so
// that a position finds its page.
DeviceKv::Moves DeviceKv::list_rows(const SequenceKv& kv, std::int64_t first, std::int64_t end,
                                    cuda::PinnedBlock& block) const {
  Moves moves{.row_bytes = geometry().row_bytes(), .device = row_pool()};
  if (first == end) return moves;
  const bool hot = kv.mode == KvMode::kHot;
  const std::int64_t first_page = first / kPageTokens;
  const auto pages = [&](const auto& list) {
    return std::span(list).subspan(static_cast<std::size_t>(first_page),
                                   static_cast<std::size_t>(pages_for_tokens(end) - first_page));
  };
  const std::int32_t* const host_pages = host_pages_of(kv, first, end, block);
  for (std::int32_t layer = 0; layer < geometry().layers; ++layer) {
    const auto& table = kv.device_pages[static_cast<std::size_t>(layer)];
    const std::int32_t* const device_pages =
        hot ? keep_ids(std::span(table).subspan(static_cast<std::size_t>(hot_pages_of(kv.hot_shape).buffer)), block)
            : keep_ids(pages(table), block) - first_page;
    add_runs(moves, first, end,
             {.device_pages = device_pages,
              .host_pages = host_pages,
              .host_rows = host_.device_rows(LayerId{layer}),
              .ring_tokens = hot ? kv.hot_shape.ring_tokens : 0});
  }
  return moves;
}

// Whole pages, as 64 rows of a 64th each.
DeviceKv::Moves DeviceKv::list_metadata(const SequenceKv& kv, std::int64_t first, std::int64_t end,
                                        cuda::PinnedBlock& block) const {
  Moves moves{.row_bytes = metadata_row_bytes(), .device = metadata_pool()};
  if (first == end) return moves;
  const std::int64_t first_page = first / kPageTokens;
  const std::int64_t end_page = pages_for_tokens(end);
  const auto pages = [&](const auto& list) {
    return std::span(list).subspan(static_cast<std::size_t>(first_page),
                                   static_cast<std::size_t>(end_page - first_page));
  };
  const std::int32_t* const host_pages = host_pages_of(kv, first, end, block);
  for (std::int32_t layer = 0; layer < layout().metadata_layers; ++layer) {
    const auto& table = kv.metadata_pages[static_cast<std::size_t>(layer)];
    add_runs(moves, first_page * kPageTokens, end_page * kPageTokens,
             {.device_pages = keep_ids(pages(table), block) - first_page,
              .host_pages = host_pages,
              .host_rows = host_.device_metadata(layer)});
  }
  return moves;
}

std::int64_t DeviceKv::metadata_row_bytes() const {
  const std::int64_t bytes = layout().metadata.page_bytes();
  HS_CHECK(bytes % kPageTokens == 0, "a metadata page divides into 64 equal parts");
  return bytes / kPageTokens;
}

void DeviceKv::add_runs(Moves& moves, std::int64_t first, std::int64_t end, cuda::RowRun run) {
  for (std::int64_t position = first; position < end; position += run.rows) {
    run.first_position = position;
    run.rows = static_cast<std::int32_t>(std::min(end, (position / kPageTokens + 1) * kPageTokens) - position);
    moves.runs.push_back(run);
    moves.rows += run.rows;
  }
}

std::int64_t DeviceKv::move(const Moves& moves, Direction direction, cuda::PinnedBlock& block,
                            const cuda::DeviceStream& stream) const {
  if (moves.runs.empty()) return 0;
  const std::int64_t least = &stream == &compute_ ? cuda::kLeastPieceAlone : cuda::kLeastPieceBesideWork;
  const cuda::SplitRuns split = cuda::split_runs(moves.runs, moves.device, moves.row_bytes, least);
  const bool to_host = direction == Direction::kToHost;
  cuda::copy_pieces(split.pieces, to_host, stream.get());
  const cuda::MoveRowsParams params{.runs = block.keep(std::span<const cuda::RowRun>(split.rest)),
                                    .device_rows = moves.device,
                                    .row_bytes = moves.row_bytes,
                                    .run_count = static_cast<std::int32_t>(split.rest.size())};
  if (to_host) {
    cuda::launch_offload(params, stream.get());
  } else {
    cuda::launch_restore(params, stream.get());
  }
  return moves.rows * moves.row_bytes;
}

void DeviceKv::move_parked_rows(const SequenceKv& kv, LayerId layer, std::int64_t first, std::int64_t end,
                                std::byte* buffer, std::int64_t buffer_rows, Direction direction, TierTraffic& traffic,
                                const kernels::cuda::DeviceStream& stream) {
  Moves moves{.row_bytes = geometry().row_bytes(), .device = buffer};
  HS_CHECK(buffer_rows % kPageTokens == 0 && end - first <= buffer_rows, "the rows fit the buffer");
  const std::span<std::int32_t> pages = block().take<std::int32_t>(buffer_rows / kPageTokens);
  std::iota(pages.begin(), pages.end(), 0);
  add_runs(moves, first, end,
           {.device_pages = pages.data(),
            .host_pages = host_pages_of(kv, first, end, block()),
            .host_rows = host_.device_rows(layer),
            .ring_tokens = static_cast<std::int32_t>(buffer_rows)});
  const std::int64_t bytes = move(moves, direction, block(), stream);
  (direction == Direction::kToHost ? traffic.bytes_offloaded : traffic.bytes_loaded) += bytes;
}

void DeviceKv::move_parked_metadata(const SequenceKv& kv, std::int32_t metadata_layer, std::int64_t first,
                                    std::int64_t end, std::byte* buffer, Direction direction, TierTraffic& traffic) {
  if (first >= end) return;
  Moves moves{.row_bytes = metadata_row_bytes(), .device = buffer};
  const std::int64_t first_page = first / kPageTokens;
  const std::span<std::int32_t> pages = block().take<std::int32_t>(pages_for_tokens(end) - first_page);
  std::iota(pages.begin(), pages.end(), static_cast<std::int32_t>(first_page));
  add_runs(moves, first_page * kPageTokens, pages_for_tokens(end) * kPageTokens,
           {.device_pages = pages.data() - first_page,
            .host_pages = host_pages_of(kv, first, end, block()),
            .host_rows = host_.device_metadata(metadata_layer)});
  const std::int64_t bytes = move(moves, direction, block(), compute_);
  (direction == Direction::kToHost ? traffic.bytes_offloaded : traffic.bytes_loaded) += bytes;
}

}  // namespace hotset::sparse
