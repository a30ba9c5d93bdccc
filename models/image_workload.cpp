#include "models/image_workload.h"

#include "runtime/core/flags.h"

namespace ddptrain {
void ImageWorkload::add_flags(CLI::App& app) {
  app.add_option("--data", data_,
                 "Folder of Fashion-MNIST, or synthetic[:COUNT]; default: $DDPTRAIN_DATA or the usual places")
      ->type_name("PATH");
}

void ImageWorkload::open(const RunFacts& run) {
  run_ = run;
  read_ = about("--data", [&] { return find_images(data_, run.seed); });
}

void ImageWorkload::load() {
  images_ = about("--data", read_);
  images_.hash_share(run_.local_rank, run_.local_size);
}

}  // namespace ddptrain
