/* Everything. */
#ifndef ABAR_H
#define ABAR_H

#include "abar/base.h"
#include "abar/analysis.h"
#include "abar/analyze.h"
#include "abar/comm.h"
#include "abar/compare.h"
#include "abar/curvature.h"
#include "abar/data.h"
#include "abar/device.h"
#include "abar/images.h"
#include "abar/net.h"
#include "abar/optim.h"
#include "abar/report.h"
#include "abar/runs.h"
#include "abar/serve.h"
#include "abar/sweep.h"
#include "abar/tensor.h"
#include "abar/train.h"
#include "abar/tune.h"

#endif
