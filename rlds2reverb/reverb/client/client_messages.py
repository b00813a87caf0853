"""The messages of a Reverb server's gRPC service; `reverb.process.messages` has those of the service of batches.

The field numbers are those of `reverb/cc/schema.proto`, `reverb_service.proto` and `checkpointing/checkpoint.proto` in
dm-reverb 0.14.0, and of TensorFlow's `tensor.proto`. Fields that are not declared are kept when a message is parsed and
serialised again.
"""

from __future__ import annotations

from ..process.messages import declare_messages

#: The prefixes of the paths of the gRPC methods of Reverb, and of the service of batches.
REVERB_SERVICE = "/deepmind.reverb.ReverbService/"
BATCH_SERVICE = "/rlds2reverb.BatchService/"

#: Messages as `declare_messages` takes them. The dot of a nested message is an underscore here. Specs and shapes are
#: kept as bytes (a `StructuredValue`, a `TensorShapeProto`), and a `DataType` as its number.
_MESSAGES = """
ChunkData: 1 chunk_key uint64, 2 sequence_range SequenceRange, 5 data ChunkData_Data, 6 data_tensors_len int32,
  7 data_uncompressed_size int64, 4 delta_encoded bool
ChunkData_Data: 1 tensors *TensorProto
SequenceRange: 1 episode_id uint64, 2 start int32, 3 end int32, 4 sparse bool
TensorProto: 1 dtype int32, 2 tensor_shape bytes, 4 tensor_content bytes, 8 string_val *bytes
TensorShapeProto: 2 dim *TensorShapeProto_Dim
TensorShapeProto_Dim: 1 size int64
FlatTrajectory: 1 columns *FlatTrajectory_Column
FlatTrajectory_Column: 1 chunk_slices *FlatTrajectory_ChunkSlice, 2 squeeze bool
FlatTrajectory_ChunkSlice: 1 chunk_key uint64, 2 offset int32, 3 length int32, 4 index int32
Timestamp: 1 seconds int64, 2 nanos int32
PrioritizedItem: 1 key uint64, 2 table string, 5 priority double, 6 times_sampled int32, 7 inserted_at Timestamp,
  8 flat_trajectory FlatTrajectory
KeyWithPriority: 1 key uint64, 2 priority double
SampleInfo: 1 item PrioritizedItem, 2 probability double, 3 table_size int64, 4 rate_limited bool
TableInfo: 8 name string, 1 sampler_options KeyDistributionOptions, 2 remover_options KeyDistributionOptions,
  3 max_size int64, 4 max_times_sampled int32, 5 rate_limiter_info RateLimiterInfo, 6 signature bytes,
  7 current_size int64, 9 num_episodes int64, 10 num_deleted_episodes int64, 11 num_unique_samples int64
RateLimiterCallStats: 2 completed int64
RateLimiterInfo: 1 samples_per_insert double, 2 min_diff double, 3 max_diff double, 4 min_size_to_sample int64,
  5 insert_stats RateLimiterCallStats, 6 sample_stats RateLimiterCallStats
KeyDistributionOptions: 1 distribution/fifo bool, 2 distribution/uniform bool,
  3 distribution/prioritized KeyDistributionOptions_Prioritized, 4 distribution/heap KeyDistributionOptions_Heap,
  6 distribution/lifo bool, 7 is_deterministic bool
KeyDistributionOptions_Prioritized: 1 priority_exponent double
KeyDistributionOptions_Heap: 1 min_heap bool
Uint128: 1 high uint64, 2 low uint64
Timeout: 1 milliseconds int64
PriorityTableCheckpoint: 1 table_name string, 6 max_size int64, 7 max_times_sampled int32,
  3 rate_limiter RateLimiterCheckpoint, 4 sampler KeyDistributionOptions, 5 remover KeyDistributionOptions,
  8 num_deleted_episodes int64, 9 signature bytes, 10 num_unique_samples int64
RateLimiterCheckpoint: 2 samples_per_insert double, 3 min_diff double, 4 max_diff double, 5 min_size_to_sample int64,
  6 sample_count int64, 7 insert_count int64, 8 delete_count int64
InsertStreamRequest: 1 chunks *ChunkData, 2 items *PrioritizedItem, 3 keep_chunk_keys *uint64
InsertStreamResponse: 1 keys *uint64
MutatePrioritiesRequest: 1 table string, 2 updates *KeyWithPriority, 3 delete_keys *uint64
ResetRequest: 1 table string
SampleStreamRequest: 1 table string, 2 num_samples int64, 3 rate_limiter_timeout Timeout
SampleEntry: 1 info SampleInfo, 2 data *ChunkData, 3 end_of_sequence bool
SampleStreamResponse: 1 entries *SampleEntry
CheckpointResponse: 1 checkpoint_path string
ServerInfoResponse: 1 tables_state_id Uint128, 2 table_info *TableInfo
"""


#: All classes of messages by name.
CLASSES = declare_messages(_MESSAGES)
ChunkData = CLASSES["ChunkData"]
PrioritizedItem = CLASSES["PrioritizedItem"]
PriorityTableCheckpoint = CLASSES["PriorityTableCheckpoint"]
TensorShapeProto = CLASSES["TensorShapeProto"]
InsertStreamRequest = CLASSES["InsertStreamRequest"]
InsertStreamResponse = CLASSES["InsertStreamResponse"]
MutatePrioritiesRequest = CLASSES["MutatePrioritiesRequest"]
ResetRequest = CLASSES["ResetRequest"]
SampleStreamRequest = CLASSES["SampleStreamRequest"]
SampleStreamResponse = CLASSES["SampleStreamResponse"]
CheckpointResponse = CLASSES["CheckpointResponse"]
ServerInfoResponse = CLASSES["ServerInfoResponse"]
