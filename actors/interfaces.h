// Every actor's typed interface: read this first. Messages are in messages.h (local) and wire_messages.h (between
// processes). The path of one step is PlanSelection -> PlanPages -> AdaptStep -> RunStep -> StepDone, all one-way;
// docs/control_plane.md follows a request through it.
#pragma once

#include <caf/replies_to.hpp>
#include <caf/typed_actor.hpp>

#include "actors/messages.h"
#include "actors/wire_messages.h"

namespace hotset::actors {

struct ConnectEngine;

// Two per API process, each with a thread of its own: one for requests, one for /tokenize and /detokenize. Encoding a
// long prompt takes long, and the Gateway delivers everybody's tokens meanwhile.
using PromptReaderActor = caf::typed_actor<
    // Checks a request, encodes its prompts and hands them to the Gateway.
    caf::reacts_to<Generate>,
    // Answers /tokenize through the callback.
    caf::reacts_to<Tokenize>,
    // Answers /detokenize through the callback.
    caf::reacts_to<Detokenize>>;

// One per API process. Open requests, tokens and text, stop strings, order of the output.
using GatewayActor = caf::typed_actor<
    // Submits a request that was read; its events go to the sink that OpenRequests keeps under the handle.
    caf::reacts_to<OpenGeneration>,
    // The client is gone: the request's sequences are cancelled, its sink hears nothing more.
    caf::reacts_to<CancelGeneration>,
    // Tokens of one step from an engine: become text deltas; a stop string cancels its sequence.
    caf::reacts_to<StepOutputs>,
    // Ends every open request with the error and cancels its sequences.
    caf::reacts_to<FailOpenRequests>>;

// One per engine. Queue, admission, continuous batching, the step loop. Keeps up to two steps on their way.
using SparseCoordinatorActor = caf::typed_actor<
    // Queues all sequences of a request, or refuses them together; outputs go to the sender.
    caf::replies_to<SubmitSequences>::with<SubmitAnswer>,
    // Admits and plans what has become possible.
    caf::reacts_to<Proceed>,
    // Drops the sequences wherever they are and gives their pages back.
    caf::reacts_to<CancelSequences>,
    // A step is done: outputs go to the gateways, the next step is planned.
    caf::reacts_to<StepDone>,
    // The stream can't run any more: every sequence fails and new ones are refused.
    caf::reacts_to<StepFailed>,
    // Tells the coordinator its neighbours; comes first.
    caf::reacts_to<ConnectEngine>>;

// One per engine. Which algorithm each row of a step uses; gathers what the steps measured.
using AlgorithmActor = caf::typed_actor<
    // Adds the selection to a draft and passes it on to the cache manager.
    caf::reacts_to<PlanSelection>,
    // Learns the statistics of a step that is done.
    caf::reacts_to<StepDone>>;

// One per engine. Pages of both tiers and modes of sequences.
using SparseKVCacheManagerActor = caf::typed_actor<
    // Reserves everything that a sequence may need, or says that it has to wait or can never run.
    caf::replies_to<AcquirePages>::with<AcquireAnswer>,
    // Takes the pages of sequences back; rows of drafts that are still under way are dropped.
    caf::reacts_to<ReleasePages>,
    // Adds the cache operations of a step and passes it on to the backend adaptor.
    caf::reacts_to<PlanPages>>;

// One per backend. Joins draft, selection and pages into what the backend's stream runs.
using BackendAdaptorActor = caf::typed_actor<
    // Builds the StepPlan and passes it on to the stream.
    caf::reacts_to<AdaptStep>>;

// One per engine; detached; alone may call the device, and queues on all of its streams: which copy comes before which
// launch is then plain from one thread's order. It waits for a GPU only as model/device_step_runner.h tells of begin().
using ComputeStreamActor = caf::typed_actor<
    // Begins the step; once it is done, sends StepDone, or StepFailed once and nothing from then on, to the
    // coordinator.
    caf::reacts_to<RunStep>,
    // The device has done the oldest step.
    caf::reacts_to<StepReached>>;

// One per GPU; detached: waits for steps, in their order, so that nobody else has to.
using StepWaiterActor = caf::typed_actor<
    // Sends StepReached when the device has done the step.
    caf::reacts_to<AwaitStep>>;

// One per tier below the device. This one keeps the books of the host tier; it moves no bytes.
using TierStoreActor = caf::typed_actor<
    // Enters complete pages; an identity that is there already keeps its first place.
    caf::reacts_to<PutPages>,
    // Answers where the leading pages of a chain lie.
    caf::replies_to<FindPages>::with<FoundPages>,
    // Forgets pages; unknown ones are ignored.
    caf::reacts_to<ErasePages>>;

// One per process. Spawns and monitors the others; a dead one makes the process unhealthy and fails the open requests.
using SupervisorActor = caf::typed_actor<
    // Stops the actors one after the other, from the gateway to the stores, then itself.
    caf::reacts_to<StopActors>>;

struct ConnectEngine {
  AlgorithmActor algorithm;
  SparseKVCacheManagerActor manager;
};

}  // namespace hotset::actors

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hotset::actors::ConnectEngine)
