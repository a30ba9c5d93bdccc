#include "runtime/comm/meta_communicator.h"

#include "runtime/core/error.h"

namespace ddptrain {

namespace {

class MetaCommunicator final : public Communicator {
 public:
  MetaCommunicator(int rank, int size, Device& device, Called& gathers)
      : rank_(rank), size_(size), device_(device), gathers_(gathers) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string library() const override { return {}; }
  Buffer allocate(std::size_t bytes) override { return device_.allocate(bytes); }

  Ticket all_reduce_sum(const Tensor&, const Tensor&, Stream) override { refuse(); }
  Ticket reduce_sum(const Tensor&, const Tensor&, int, Stream) override { refuse(); }
  Ticket reduce_scatter_sum(const Tensor&, const Tensor&, Stream) override { refuse(); }
  Ticket all_gather(const Tensor&, const Tensor& to, Stream) override {
    ++gathers_.times;
    gathers_.bytes += static_cast<std::int64_t>(to.bytes());
    return 0;
  }
  Ticket all_to_all(const Tensor&, const Tensor&, Stream) override { refuse(); }
  Ticket broadcast(const Tensor&, const Tensor&, int, Stream) override { refuse(); }
  Ticket exchange(const std::vector<Message>&, const std::vector<Message>&, Stream) override { refuse(); }
  bool test(Ticket) override { return true; }
  void wait(Ticket) override {}

 private:
  [[noreturn]] static void refuse() { fail("these ranks exchange nothing"); }

  int rank_;
  int size_;
  Device& device_;
  Called& gathers_;
};

}  // namespace

std::unique_ptr<Communicator> make_meta_communicator(int rank, int size, Device& device, Called& gathers) {
  return std::make_unique<MetaCommunicator>(rank, size, device, gathers);
}

}  // namespace ddptrain
