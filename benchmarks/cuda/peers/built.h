// Whether this build has the peers of this folder (HOTSET_PEERS). Without them their functions are declared, and may be
// named under `if constexpr (kBuilt)` alone.
#pragma once

namespace hotset::peers {

#ifdef HOTSET_PEERS_BUILT
inline constexpr bool kBuilt = true;
#else
inline constexpr bool kBuilt = false;
#endif

}  // namespace hotset::peers
