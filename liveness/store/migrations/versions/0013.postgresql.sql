CREATE INDEX log_by_workflow ON log (workflow_id, seq) WHERE workflow_id IS NOT NULL;
