#include "tests/fault/adversary/scene.h"

#include <atomic>

namespace cairn::fault {

void Findings::Add(const std::string& text) {
  MutexLock lock(mu_);
  for (auto& [known, count] : found_) {
    if (known == text) {
      ++count;
      return;
    }
  }
  if (found_.size() < 50) found_.emplace_back(text, 1);
}

void Findings::Note(const std::string& text) {
  MutexLock lock(mu_);
  if (notes_.size() < 20) notes_.push_back(text);
}

std::vector<std::string> Findings::Take() {
  MutexLock lock(mu_);
  std::vector<std::string> texts;
  for (const auto& [text, count] : found_) {
    texts.push_back(count == 1 ? text : fmt::format("{} ({} times)", text, count));
  }
  found_.clear();
  return texts;
}

std::vector<std::string> Findings::Notes() {
  MutexLock lock(mu_);
  return std::exchange(notes_, {});
}

bool Scene::Spend(std::chrono::milliseconds time) const {
  const TimePoint end = SteadyClock::Get().Now() + time;
  while (going() && SteadyClock::Get().Now() < end) {
    std::this_thread::sleep_for(std::min(time, std::chrono::milliseconds(10)));
  }
  return going();
}

void Scene::Expect(bool held, const std::string& text) {
  if (!held && going()) findings_.Add(text);
}

std::string Scene::Tenant(const std::string& name) {
  static std::atomic<uint64_t> number{0};
  return fmt::format("{}{}-{}", kTenantPrefix, name, number.fetch_add(1));
}

void Scene::PauseHonest() {
  for (HonestLoad* load : honest) load->Pause();
}

void Scene::ContinueHonest() {
  for (HonestLoad* load : honest) load->Continue();
}

}  // namespace cairn::fault
