"""Options of replicas that train apart (`diloco`), or as runs of their own (`fault_tolerance`)."""
