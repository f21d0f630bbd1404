#include "clients/cpp/src/grpc/data_connections.h"

#include <algorithm>
#include <utility>

namespace cairn::client {

DataConnections::DataConnections(std::vector<std::shared_ptr<grpc::Channel>> channels) {
  for (std::shared_ptr<grpc::Channel>& channel : channels) {
    auto reconnect = std::make_unique<rpc::Reconnect>(channel);
    connections_.push_back({.stub = std::make_unique<grpc::GenericStub>(std::move(channel)),
                            .reconnect = std::move(reconnect)});
  }
}

DataConnections::Use DataConnections::Take() {
  MutexLock lock(mu_);
  const auto least = std::ranges::min_element(connections_, {}, &Connection::calls);
  ++least->calls;
  least->reconnect->BeforeCall(SteadyClock::Get().Now());
  return Use(this, static_cast<size_t>(least - connections_.begin()), least->stub.get());
}

DataConnections::Use::Use(Use&& other) noexcept
    : owner_(std::exchange(other.owner_, nullptr)), index_(other.index_), stub_(other.stub_) {}

DataConnections::Use::~Use() {
  if (owner_ == nullptr) return;
  MutexLock lock(owner_->mu_);
  --owner_->connections_[index_].calls;
}

}  // namespace cairn::client
