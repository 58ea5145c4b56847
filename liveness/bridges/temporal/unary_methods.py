"""The methods that are known to be unary: gRPC serves them faster than streams, and metrics name them. Any other method passes as a
stream, which on the wire a unary call is as well."""

from __future__ import annotations

from liveness.bridges.temporal.messages import SERVICE

OPERATOR_SERVICE = "/temporal.api.operatorservice.v1.OperatorService/"
_WORKFLOW_METHODS = """
    CountActivityExecutions CountNexusOperationExecutions CountSchedules CountWorkers CountWorkflowExecutions
    CreateSchedule CreateWorkerDeployment CreateWorkerDeploymentVersion CreateWorkflowRule DeleteActivityExecution
    DeleteNexusOperationExecution DeleteSchedule DeleteWorkerDeployment DeleteWorkerDeploymentVersion
    DeleteWorkflowExecution DeleteWorkflowRule DeprecateNamespace DescribeActivityExecution DescribeBatchOperation
    DescribeDeployment DescribeNamespace DescribeNexusOperationExecution DescribeSchedule DescribeTaskQueue
    DescribeWorker DescribeWorkerDeployment DescribeWorkerDeploymentVersion DescribeWorkflowExecution
    DescribeWorkflowRule ExecuteMultiOperation FetchWorkerConfig GetClusterInfo GetCurrentDeployment
    GetDeploymentReachability GetSearchAttributes GetSystemInfo GetWorkerBuildIdCompatibility
    GetWorkerTaskReachability GetWorkerVersioningRules GetWorkflowExecutionHistory
    GetWorkflowExecutionHistoryReverse ListActivityExecutions ListArchivedWorkflowExecutions ListBatchOperations
    ListClosedWorkflowExecutions ListDeployments ListNamespaces ListNexusOperationExecutions
    ListOpenWorkflowExecutions ListScheduleMatchingTimes ListSchedules ListTaskQueuePartitions ListWorkerDeployments
    ListWorkers ListWorkflowExecutions ListWorkflowRules PatchSchedule PauseActivity PauseActivityExecution
    PauseWorkflowExecution PollActivityExecution PollActivityTaskQueue PollNexusOperationExecution
    PollNexusTaskQueue PollWorkflowExecutionTimeSkipping PollWorkflowExecutionUpdate PollWorkflowTaskQueue
    QueryWorkflow RecordActivityTaskHeartbeat RecordActivityTaskHeartbeatById RecordWorkerHeartbeat
    RegisterNamespace RequestCancelActivityExecution RequestCancelNexusOperationExecution
    RequestCancelWorkflowExecution ResetActivity ResetActivityExecution ResetStickyTaskQueue ResetWorkflowExecution
    RespondActivityTaskCanceled RespondActivityTaskCanceledById RespondActivityTaskCompleted
    RespondActivityTaskCompletedById RespondActivityTaskFailed RespondActivityTaskFailedById
    RespondNexusTaskCompleted RespondNexusTaskFailed RespondQueryTaskCompleted RespondWorkflowTaskCompleted
    RespondWorkflowTaskFailed ScanWorkflowExecutions SetCurrentDeployment SetWorkerDeploymentCurrentVersion
    SetWorkerDeploymentManager SetWorkerDeploymentRampingVersion ShutdownWorker SignalWithStartWorkflowExecution
    SignalWorkflowExecution StartActivityExecution StartBatchOperation StartNexusOperationExecution
    StartWorkflowExecution StopBatchOperation TerminateActivityExecution TerminateNexusOperationExecution
    TerminateWorkflowExecution TriggerWorkflowRule UnpauseActivity UnpauseActivityExecution UnpauseWorkflowExecution
    UpdateActivityExecutionOptions UpdateActivityOptions UpdateNamespace UpdateSchedule UpdateTaskQueueConfig
    UpdateWorkerBuildIdCompatibility UpdateWorkerConfig UpdateWorkerDeploymentVersionComputeConfig
    UpdateWorkerDeploymentVersionMetadata UpdateWorkerVersioningRules UpdateWorkflowExecution
    UpdateWorkflowExecutionOptions ValidateWorkerDeploymentVersionComputeConfig
"""
_OPERATOR_METHODS = """
    AddOrUpdateRemoteCluster AddSearchAttributes CreateNexusEndpoint DeleteNamespace DeleteNexusEndpoint
    GetNexusEndpoint ListClusters ListNexusEndpoints ListSearchAttributes RemoveRemoteCluster RemoveSearchAttributes
    UpdateNexusEndpoint
"""
UNARY_METHODS = frozenset(
    [
        *(SERVICE + name for name in _WORKFLOW_METHODS.split()),
        *(OPERATOR_SERVICE + name for name in _OPERATOR_METHODS.split()),
        "/grpc.health.v1.Health/Check",
    ]
)
