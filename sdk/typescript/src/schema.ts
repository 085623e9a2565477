// Generated from the server's OpenAPI document by scripts/generate.mjs. Do not edit.

export interface paths {
  "/healthz": {
    parameters: {
    };
    /** Check that the server is running */
    get: operations["host_health"];
  };
  "/mcp": {
    parameters: {
    };
    /** Stream server messages of an MCP session */
    get: operations["mcp_listen"];
    /** Send an MCP message and get its response */
    post: operations["mcp_post"];
    /** End an MCP session */
    delete: operations["mcp_end"];
  };
  "/metrics": {
    parameters: {
    };
    /** Get figures for Prometheus */
    get: operations["host_metrics"];
  };
  "/openapi.json": {
    parameters: {
    };
    /** Get the OpenAPI document */
    get: operations["host_openapi"];
  };
  "/readyz": {
    parameters: {
    };
    /** Check that the server can create sandboxes */
    get: operations["host_ready"];
  };
  "/v1/audit": {
    parameters: {
    };
    /** List records of the audit log, newest first */
    get: operations["audit_list"];
  };
  "/v1/audit/export": {
    parameters: {
    };
    /** Export the audit log up to a new seal */
    get: operations["audit_export"];
  };
  "/v1/audit/keys": {
    parameters: {
    };
    /** Get the audit log's public keys and newest checkpoint */
    get: operations["audit_keys"];
    /** Sign the audit log with a new key */
    post: operations["audit_rotate"];
  };
  "/v1/audit/verify": {
    parameters: {
    };
    /** Verify the audit log */
    get: operations["audit_verify"];
  };
  "/v1/budgets": {
    parameters: {
    };
    /** List budgets with their used amounts */
    get: operations["budgets_list"];
    /** Set the budget of a label or an owner, or change its amounts */
    put: operations["budgets_set"];
  };
  "/v1/budgets/{budget}": {
    parameters: {
    };
    /** Remove the budget of a label or an owner */
    delete: operations["budgets_remove"];
  };
  "/v1/doctor": {
    parameters: {
    };
    /** Check which isolation this host supports */
    get: operations["host_doctor"];
  };
  "/v1/events": {
    parameters: {
    };
    /** Get events; `follow` streams them */
    get: operations["events_list"];
  };
  "/v1/images": {
    parameters: {
    };
    /** List images */
    get: operations["images_list"];
    /** Build an image and stream progress; with `snapshot`, create it from one (201) */
    post: operations["images_create"];
  };
  "/v1/images/{name}": {
    parameters: {
    };
    /** Get an image */
    get: operations["images_get"];
    /** Delete an image */
    delete: operations["images_remove"];
  };
  "/v1/images/export": {
    parameters: {
    };
    /** Export an image as a tar archive */
    get: operations["archives_export_image"];
  };
  "/v1/images/import": {
    parameters: {
    };
    /** Import an image from an archive */
    post: operations["archives_import_image"];
  };
  "/v1/images/prune": {
    parameters: {
    };
    /** Remove unused image data */
    post: operations["images_prune"];
  };
  "/v1/images/pull": {
    parameters: {
    };
    /** Pull an image from a registry and stream progress */
    post: operations["images_pull"];
  };
  "/v1/images/verify": {
    parameters: {
    };
    /** Verify every byte of image layers and stream progress */
    post: operations["images_verify"];
  };
  "/v1/languages": {
    parameters: {
    };
    /** List languages, and the versions in each image */
    get: operations["languages_list"];
  };
  "/v1/languages/{language}/install": {
    parameters: {
    };
    /** Install the tools of a language into an image, unless it is there, and stream progress */
    post: operations["languages_install"];
  };
  "/v1/pool": {
    parameters: {
    };
    /** Get the pool of ready sandboxes */
    get: operations["pool_show"];
    /** Set the number of ready sandboxes of an image */
    put: operations["pool_set"];
    /** Delete all ready sandboxes; the pool refills on the next create */
    delete: operations["pool_drain"];
  };
  "/v1/replays": {
    parameters: {
    };
    /** Create a sandbox in the state at the start of a trace, with a closed network */
    post: operations["replays_create"];
  };
  "/v1/review/copies": {
    parameters: {
    };
    /** List the sandboxes that are copies of repositories */
    get: operations["review_copies"];
  };
  "/v1/review/deleted": {
    parameters: {
    };
    /** List deleted sandboxes whose review is kept */
    get: operations["review_deleted"];
  };
  "/v1/review/deleted/{ref}": {
    parameters: {
    };
    /** Create a sandbox with the kept review and workspace of a deleted one */
    post: operations["review_undelete"];
  };
  "/v1/review/git/refs": {
    parameters: {
    };
    /** List the git refs of all reviews: ledger tips and the agents' branches */
    get: operations["review_refs"];
  };
  "/v1/sandboxes": {
    parameters: {
    };
    /** List sandboxes */
    get: operations["sandboxes_list"];
    /** Create a sandbox */
    post: operations["sandboxes_create"];
  };
  "/v1/sandboxes/{ref}": {
    parameters: {
    };
    /** Get a sandbox */
    get: operations["sandboxes_get"];
    /** Delete a sandbox and its files */
    delete: operations["sandboxes_delete"];
    /** Update a sandbox */
    patch: operations["sandboxes_update"];
  };
  "/v1/sandboxes/{ref}/code": {
    parameters: {
    };
    /** Run code and return its values */
    post: operations["code_run"];
  };
  "/v1/sandboxes/{ref}/contexts": {
    parameters: {
    };
    /** List contexts */
    get: operations["contexts_list"];
    /** Create a context for a language */
    post: operations["contexts_create"];
  };
  "/v1/sandboxes/{ref}/contexts/{context}": {
    parameters: {
    };
    /** Get a context */
    get: operations["contexts_get"];
    /** Delete a context and end its code */
    delete: operations["contexts_remove"];
  };
  "/v1/sandboxes/{ref}/contexts/{context}/interrupt": {
    parameters: {
    };
    /** Interrupt the code in a context and keep its variables */
    post: operations["contexts_interrupt"];
  };
  "/v1/sandboxes/{ref}/contexts/{context}/restart": {
    parameters: {
    };
    /** Restart a context with empty memory */
    post: operations["contexts_restart"];
  };
  "/v1/sandboxes/{ref}/files": {
    parameters: {
    };
    /** Read a file */
    get: operations["files_read"];
    /** Write a file atomically, or append to it */
    put: operations["files_write"];
    /** Remove a file or directory */
    delete: operations["files_remove"];
  };
  "/v1/sandboxes/{ref}/files/checksum": {
    parameters: {
    };
    /** Compute the checksum of a file */
    get: operations["files_checksum"];
  };
  "/v1/sandboxes/{ref}/files/chmod": {
    parameters: {
    };
    /** Change file modes */
    post: operations["files_chmod"];
  };
  "/v1/sandboxes/{ref}/files/chown": {
    parameters: {
    };
    /** Change file owners */
    post: operations["files_chown"];
  };
  "/v1/sandboxes/{ref}/files/copy": {
    parameters: {
    };
    /** Copy a file or directory */
    post: operations["files_copy"];
  };
  "/v1/sandboxes/{ref}/files/glob": {
    parameters: {
    };
    /** Find files by a name pattern */
    get: operations["files_glob"];
  };
  "/v1/sandboxes/{ref}/files/lines": {
    parameters: {
    };
    /** Read a range of lines of a file */
    get: operations["files_lines"];
  };
  "/v1/sandboxes/{ref}/files/link": {
    parameters: {
    };
    /** Create a link */
    post: operations["files_link"];
  };
  "/v1/sandboxes/{ref}/files/list": {
    parameters: {
    };
    /** List a directory */
    get: operations["files_list"];
  };
  "/v1/sandboxes/{ref}/files/mkdir": {
    parameters: {
    };
    /** Create a directory */
    post: operations["files_mkdir"];
  };
  "/v1/sandboxes/{ref}/files/move": {
    parameters: {
    };
    /** Move a file or directory */
    post: operations["files_move"];
  };
  "/v1/sandboxes/{ref}/files/patch": {
    parameters: {
    };
    /** Apply a unified diff */
    post: operations["files_patch"];
  };
  "/v1/sandboxes/{ref}/files/replace": {
    parameters: {
    };
    /** Replace text in a file */
    post: operations["files_replace"];
  };
  "/v1/sandboxes/{ref}/files/search": {
    parameters: {
    };
    /** Search file contents for a pattern */
    get: operations["files_search"];
  };
  "/v1/sandboxes/{ref}/files/stat": {
    parameters: {
    };
    /** Get the metadata of a path */
    get: operations["files_stat"];
  };
  "/v1/sandboxes/{ref}/files/tree": {
    parameters: {
    };
    /** Download a directory as a tar archive */
    get: operations["files_download"];
    /** Upload and unpack a tar archive */
    put: operations["files_upload"];
  };
  "/v1/sandboxes/{ref}/files/watch": {
    parameters: {
    };
    /** Stream the changes below a directory */
    get: operations["files_watch"];
  };
  "/v1/sandboxes/{ref}/fork": {
    parameters: {
    };
    /** Fork a sandbox into one or more copies, all or none */
    post: operations["snapshots_fork"];
  };
  "/v1/sandboxes/{ref}/languages": {
    parameters: {
    };
    /** List the languages installed in a sandbox, with versions */
    get: operations["languages_there"];
  };
  "/v1/sandboxes/{ref}/network": {
    parameters: {
    };
    /** Get the network policy and traffic counters */
    get: operations["network_show"];
    /** Replace the network policy */
    put: operations["network_set"];
    /** Add rules and close connections that are no longer allowed */
    patch: operations["network_change"];
  };
  "/v1/sandboxes/{ref}/network/approvals": {
    parameters: {
    };
    /** Stream approval requests for destinations that no rule names */
    get: operations["network_approvals"];
  };
  "/v1/sandboxes/{ref}/network/approvals/{approval}": {
    parameters: {
    };
    /** Answer an approval request */
    post: operations["network_answer_approval"];
  };
  "/v1/sandboxes/{ref}/network/cassette": {
    parameters: {
    };
    /** Describe the recorded exchanges, or download them */
    get: operations["network_cassette"];
    /** Replace the cassette of a sandbox that replays */
    put: operations["network_load_cassette"];
  };
  "/v1/sandboxes/{ref}/network/handlers": {
    parameters: {
    };
    /** Stream the requests that wait for a client's handler */
    get: operations["network_handler_calls"];
  };
  "/v1/sandboxes/{ref}/network/handlers/{call}": {
    parameters: {
    };
    /** Decide about a request or response that waits for a handler */
    post: operations["network_decide_call"];
  };
  "/v1/sandboxes/{ref}/network/log": {
    parameters: {
    };
    /** Get the log of network attempts; `follow` streams it */
    get: operations["network_log"];
  };
  "/v1/sandboxes/{ref}/network/suggested-policy": {
    parameters: {
    };
    /** Get the smallest policy that allows the logged attempts */
    get: operations["network_suggested_policy"];
  };
  "/v1/sandboxes/{ref}/pause": {
    parameters: {
    };
    /** Pause a sandbox: freeze its processes */
    post: operations["sandboxes_pause"];
  };
  "/v1/sandboxes/{ref}/ports/{port}/connect": {
    parameters: {
    };
    /** Open a TCP connection to a port (WebSocket) */
    get: operations["ports_connect"];
  };
  "/v1/sandboxes/{ref}/ports/{port}/wait": {
    parameters: {
    };
    /** Wait until a process listens on a port */
    get: operations["ports_wait"];
  };
  "/v1/sandboxes/{ref}/previews": {
    parameters: {
    };
    /** List previews with their tokens */
    get: operations["previews_list"];
    /** Expose a port at a URL, or change an existing preview */
    post: operations["previews_create"];
  };
  "/v1/sandboxes/{ref}/previews/{port}": {
    parameters: {
    };
    /** Revoke a preview and close its open connections */
    delete: operations["previews_remove"];
  };
  "/v1/sandboxes/{ref}/processes": {
    parameters: {
    };
    /** List processes */
    get: operations["processes_list"];
    /** Run a command; without `wait`, in the background (201) */
    post: operations["processes_run"];
  };
  "/v1/sandboxes/{ref}/processes/{process}": {
    parameters: {
    };
    /** Get a process */
    get: operations["processes_get"];
    /** Remove a process that has ended */
    delete: operations["processes_remove"];
  };
  "/v1/sandboxes/{ref}/processes/{process}/output": {
    parameters: {
    };
    /** Get a process's output from any offset; `follow` streams it */
    get: operations["processes_output"];
  };
  "/v1/sandboxes/{ref}/processes/{process}/resize": {
    parameters: {
    };
    /** Resize a process's terminal */
    post: operations["processes_resize"];
  };
  "/v1/sandboxes/{ref}/processes/{process}/signal": {
    parameters: {
    };
    /** Send a signal to a process */
    post: operations["processes_signal"];
  };
  "/v1/sandboxes/{ref}/processes/{process}/stdin": {
    parameters: {
    };
    /** Write to a process's standard input */
    post: operations["processes_stdin"];
  };
  "/v1/sandboxes/{ref}/processes/{process}/terminal": {
    parameters: {
    };
    /** Attach to a process's terminal (WebSocket) */
    get: operations["terminals_attach"];
  };
  "/v1/sandboxes/{ref}/processes/{process}/tool-calls": {
    parameters: {
    };
    /** Report tool calls of a coding agent */
    post: operations["processes_tool_calls"];
  };
  "/v1/sandboxes/{ref}/processes/{process}/wait": {
    parameters: {
    };
    /** Wait until a process ends; 204 if it is still running */
    get: operations["processes_wait"];
  };
  "/v1/sandboxes/{ref}/rename": {
    parameters: {
    };
    /** Rename a sandbox */
    post: operations["sandboxes_rename"];
  };
  "/v1/sandboxes/{ref}/restore": {
    parameters: {
    };
    /** Restore a snapshot of a directory into a sandbox */
    post: operations["snapshots_restore"];
  };
  "/v1/sandboxes/{ref}/resume": {
    parameters: {
    };
    /** Resume a stopped or paused sandbox */
    post: operations["sandboxes_resume"];
  };
  "/v1/sandboxes/{ref}/review": {
    parameters: {
    };
    /** Get the changes to the user's files as hunks */
    get: operations["review_show"];
    /** Start recording the changes of a workspace */
    post: operations["review_begin"];
  };
  "/v1/sandboxes/{ref}/review/applies": {
    parameters: {
    };
    /** Record that a patch set was applied */
    post: operations["review_record_apply"];
  };
  "/v1/sandboxes/{ref}/review/applies/{apply}": {
    parameters: {
    };
    /** Record that an apply was undone */
    delete: operations["review_record_undo"];
  };
  "/v1/sandboxes/{ref}/review/blobs/{oid}": {
    parameters: {
    };
    /** Get a blob by its object ID */
    get: operations["review_blob"];
  };
  "/v1/sandboxes/{ref}/review/decisions": {
    parameters: {
    };
    /** Accept, reject, reopen, split or edit hunks */
    post: operations["review_decide"];
  };
  "/v1/sandboxes/{ref}/review/diff": {
    parameters: {
    };
    /** Get the changes to the user's files as a patch */
    get: operations["review_diff"];
  };
  "/v1/sandboxes/{ref}/review/git/pack": {
    parameters: {
    };
    /** Get the objects of a review's refs as a git pack */
    post: operations["review_pack"];
  };
  "/v1/sandboxes/{ref}/review/history": {
    parameters: {
    };
    /** Get the changes of each command */
    get: operations["review_history"];
  };
  "/v1/sandboxes/{ref}/review/hunks/{hunk}": {
    parameters: {
    };
    /** Get a complete hunk */
    get: operations["review_hunk"];
  };
  "/v1/sandboxes/{ref}/review/hunks/{hunk}/origin": {
    parameters: {
    };
    /** Get the commands that produced a hunk */
    get: operations["review_origin"];
  };
  "/v1/sandboxes/{ref}/review/patch-set": {
    parameters: {
    };
    /** Get the accepted changes, ready to apply */
    get: operations["review_patch_set"];
  };
  "/v1/sandboxes/{ref}/review/pulls": {
    parameters: {
    };
    /** Write the user's later edits into the sandbox */
    post: operations["review_pull"];
  };
  "/v1/sandboxes/{ref}/review/tree": {
    parameters: {
    };
    /** List the user's files as read last, with applied changes, and as they are in the sandbox */
    get: operations["review_tree"];
  };
  "/v1/sandboxes/{ref}/review/watch": {
    parameters: {
    };
    /** Stream changes and decisions */
    get: operations["review_watch"];
  };
  "/v1/sandboxes/{ref}/rollback": {
    parameters: {
    };
    /** Roll back a sandbox's files and end its processes */
    post: operations["snapshots_rollback"];
  };
  "/v1/sandboxes/{ref}/sessions": {
    parameters: {
    };
    /** List sessions */
    get: operations["sessions_list"];
    /** Get a session by name, or create it */
    post: operations["sessions_open"];
  };
  "/v1/sandboxes/{ref}/sessions/{session}": {
    parameters: {
    };
    /** Get a session */
    get: operations["sessions_get"];
    /** Delete a session and its state */
    delete: operations["sessions_remove"];
  };
  "/v1/sandboxes/{ref}/snapshots": {
    parameters: {
    };
    /** List the snapshots of a sandbox, oldest first */
    get: operations["snapshots_of_one"];
    /** Take a snapshot of a sandbox's files */
    post: operations["snapshots_take"];
  };
  "/v1/sandboxes/{ref}/stop": {
    parameters: {
    };
    /** Stop a sandbox: end its processes and keep its files */
    post: operations["sandboxes_stop"];
  };
  "/v1/sandboxes/{ref}/terminal-ticket": {
    parameters: {
    };
    /** Get a ticket for one terminal, for a browser */
    post: operations["terminals_ticket"];
  };
  "/v1/sandboxes/{ref}/trace": {
    parameters: {
    };
    /** Get the trace of a sandbox, also of a deleted one by its ID; `follow` streams new lines */
    get: operations["trace_show"];
  };
  "/v1/sandboxes/{ref}/trace/blobs/{sha256}": {
    parameters: {
    };
    /** Get a content of a trace by its hash */
    get: operations["trace_blob"];
  };
  "/v1/sandboxes/{ref}/trace/export": {
    parameters: {
    };
    /** Export a trace with its contents as one archive */
    get: operations["trace_export"];
  };
  "/v1/sandboxes/{ref}/usage": {
    parameters: {
    };
    /** Get the resource usage of a sandbox, also of a deleted one */
    get: operations["sandboxes_usage"];
  };
  "/v1/server": {
    parameters: {
    };
    /** Get information about the server */
    get: operations["host_info"];
  };
  "/v1/server/stop": {
    parameters: {
    };
    /** Stop the server and leave sandboxes running */
    post: operations["host_stop"];
  };
  "/v1/snapshots": {
    parameters: {
    };
    /** List snapshots */
    get: operations["snapshots_list"];
  };
  "/v1/snapshots/{snapshot}": {
    parameters: {
    };
    /** Get a snapshot */
    get: operations["snapshots_get"];
    /** Delete a snapshot that nothing depends on */
    delete: operations["snapshots_remove"];
  };
  "/v1/snapshots/{snapshot}/changes": {
    parameters: {
    };
    /** Compare a snapshot with another state */
    get: operations["snapshots_changes"];
  };
  "/v1/snapshots/{snapshot}/export": {
    parameters: {
    };
    /** Export a snapshot as a tar archive */
    get: operations["archives_export_snapshot"];
  };
  "/v1/snapshots/import": {
    parameters: {
    };
    /** Import a snapshot from an archive */
    post: operations["archives_import_snapshot"];
  };
  "/v1/stats": {
    parameters: {
    };
    /** Get the resource usage and limits of sandboxes */
    get: operations["sandboxes_stats"];
  };
  "/v1/tokens": {
    parameters: {
    };
    /** List tokens */
    get: operations["tokens_list"];
    /** Create a token and show its secret once */
    post: operations["tokens_create"];
  };
  "/v1/tokens/{token}": {
    parameters: {
    };
    /** Delete a token */
    delete: operations["tokens_remove"];
  };
  "/v1/usage": {
    parameters: {
    };
    /** Get the resources that sandboxes have used, by group */
    get: operations["usage_report"];
  };
  "/v1/volumes": {
    parameters: {
    };
    /** List volumes and their snapshots */
    get: operations["volumes_list"];
    /** Create a volume */
    post: operations["volumes_create"];
  };
  "/v1/volumes/{volume}": {
    parameters: {
    };
    /** Get a volume */
    get: operations["volumes_get"];
    /** Delete a volume that no sandbox mounts */
    delete: operations["volumes_remove"];
  };
  "/v1/volumes/{volume}/clone": {
    parameters: {
    };
    /** Create a volume with the files of another one */
    post: operations["volumes_clone"];
  };
  "/v1/volumes/{volume}/export": {
    parameters: {
    };
    /** Export the files of a volume as a tar archive */
    get: operations["volumes_export"];
  };
  "/v1/volumes/{volume}/snapshot": {
    parameters: {
    };
    /** Make a copy of a volume that never changes */
    post: operations["volumes_snapshot"];
  };
  "/v1/volumes/import": {
    parameters: {
    };
    /** Create a volume from a tar archive */
    post: operations["volumes_import"];
  };
  "/v1/webhooks": {
    parameters: {
    };
    /** List webhooks and the state of their queues */
    get: operations["webhooks_list"];
  };
  "/v1/webhooks/{webhook}/retry": {
    parameters: {
    };
    /** Send dead deliveries of a webhook again */
    post: operations["webhooks_retry"];
  };
  "/v1/webhooks/{webhook}/test": {
    parameters: {
    };
    /** Send a test event to a webhook */
    post: operations["webhooks_test"];
  };
  "/v1/webhooks/dead": {
    parameters: {
    };
    /** List deliveries that failed for good, newest first */
    get: operations["webhooks_dead"];
  };
}
export type webhooks = Record<string, never>;
export interface components {
  schemas: {
    /**
     * AppliedRequest
     * @description POST …/review/applies (scope `review`): record that a patch set was applied to the client's tree. The client
     *     chooses `id`; repeating a request has no effect. `elsewhere`: only a branch has the changes, the working tree lacks
     *     them.
     */
    AppliedRequest: {
      digest?: string | null;
      elsewhere?: boolean;
      hunks?: string[];
      id: string;
    };
    /**
     * Approval
     * @description POST …/network/approvals/{id}. `remember`: add a rule.
     */
    Approval: {
      allow: boolean;
      remember?: boolean;
    };
    /**
     * ApprovalRequest
     * @description A request for approval of a destination that no rule names. No answer in time means denied.
     */
    ApprovalRequest: {
      at: number;
      ends_at: number;
      host: string;
      id: string;
      port: number | null;
      process: string | null;
      sandbox: string;
    };
    /**
     * AuditKey
     * @description A public key of the audit log: the raw Ed25519 key in base64.
     */
    AuditKey: {
      current: boolean;
      id: string;
      public: string;
    };
    /**
     * AuditKeys
     * @description The public keys of the audit log, oldest first, and the newest checkpoint as a line of JSON.
     */
    AuditKeys: {
      checkpoint: string | null;
      keys: components["schemas"]["AuditKey"][];
    };
    /**
     * AuditPage
     * @description Records, newest first. `next`: pass it as `before` to get the page of older records; None: there are none. A page
     *     may be short, or empty, and still have a next one.
     */
    AuditPage: {
      next: number | null;
      records: components["schemas"]["AuditRecord"][];
    };
    /**
     * AuditProblem
     * @description A place where the audit log is not as the server wrote it.
     */
    AuditProblem: {
      place: string;
      problem: string;
      seq: number;
    };
    /**
     * AuditRecord
     * @description A record of the audit log: an action of a caller, or an event in a sandbox. `actor`: a token's ID, `uid:N` for a
     *     user of the unix socket, or `sandbox`, `server`. `source`: the caller's address. `params` has no secret values.
     *     `result` None: the action has not ended, or the server was killed before its end.
     */
    AuditRecord: {
      actor: string | null;
      at: number;
      owner: string | null;
      params: {
        [key: string]: unknown;
      };
      result: components["schemas"]["AuditResult"] | null;
      sandbox: string | null;
      seq: number;
      source: string | null;
      type: string;
    };
    /**
     * AuditReport
     * @description The result of a verification. `first`, `last`: numbers of the records that were found; `sealed`: the last one
     *     under a valid signature.
     */
    AuditReport: {
      first: number | null;
      last: number | null;
      log: string | null;
      ok: boolean;
      problems: components["schemas"]["AuditProblem"][];
      records: number;
      sealed: number | null;
    };
    /**
     * AuditResult
     * @description The result of an action. `status`: of HTTP. `code`: of the error. `details`: an exit code, an ID.
     */
    AuditResult: {
      at: number;
      code: string | null;
      details: {
        [key: string]: unknown;
      };
      status: number;
    };
    /**
     * BeginReview
     * @description POST …/review: take the present content of `path` as the user's files and record changes from now on. `ignore`:
     *     lines of gitignore files by the directory that they apply to ('' is the root), the weaker first. `tracked`: paths
     *     that count in spite of them. `origin`: the source, named by the client, opaque here. `head`: the commit that it is
     *     based on, if any. `known`: the commits of its branches and tags at the start: the user has them. `exclude`: globs of
     *     files to keep apart like generated files. `copied_at`: when the client read the files, in seconds since 1970.
     */
    BeginReview: {
      copied_at?: number | null;
      exclude?: string[];
      head?: string | null;
      ignore?: [
        string,
        string[]
      ][];
      known?: string[];
      origin?: string | null;
      path?: string;
      tracked?: string[];
    };
    /**
     * Budget
     * @description The largest usage: CPU time, cost (in the currency of the operator's prices), bytes sent and received, and time
     *     in which sandboxes run. `on_exceeded`: "pause" (default) or "stop".
     */
    Budget: {
      cost?: number | null;
      cpu?: string | number | null;
      network?: string | number | null;
      on_exceeded?: ("pause" | "stop") | null;
      wall?: string | number | null;
    };
    /**
     * BudgetInfo
     * @description A budget of a sandbox (`sandbox`), of a label, or, without both, of an owner. `exceeded`: the amounts that are
     *     used up. `set_by`: the scope of the caller that set it. `notice`: a reason why an amount has no effect.
     */
    BudgetInfo: {
      budget: components["schemas"]["Budget"];
      created_at: number;
      exceeded: ("cost" | "cpu" | "network" | "wall")[];
      id: string;
      label: string | null;
      notice: string | null;
      owner: string;
      sandbox: string | null;
      /**
       * @default use
       * @enum {unknown}
       */
      set_by: "admin" | "metrics" | "review" | "use";
      used: components["schemas"]["BudgetUse"];
    };
    /** BudgetList */
    BudgetList: {
      budgets: components["schemas"]["BudgetInfo"][];
    };
    /**
     * BudgetRequest
     * @description PUT /v1/budgets: set the budget of a label (`key=value`), or without one, of an owner. Setting it again changes
     *     its amounts and keeps the used ones. `owner`: for administrators; the default is the caller.
     */
    BudgetRequest: {
      budget: components["schemas"]["Budget"];
      label?: string | null;
      owner?: string | null;
    };
    /**
     * BudgetUse
     * @description Used amounts: seconds of CPU time, cost, bytes sent and received, seconds in which sandboxes ran.
     */
    BudgetUse: {
      cost: number;
      cpu_s: number;
      network: number;
      wall_s: number;
    };
    /**
     * CassetteInfo
     * @description The recorded exchanges of a sandbox. `size`: bytes of their bodies. `omitted`: exchanges that were not recorded.
     *     `full`: the reason why the recording ended early.
     */
    CassetteInfo: {
      exchanges: number;
      full: string | null;
      omitted: number;
      size: number;
    };
    /**
     * Check
     * @description One line of `skerry doctor`. `ok` None: unknown, or a better alternative exists.
     */
    Check: {
      detail: string;
      fix: string | null;
      name: string;
      ok: boolean | null;
    };
    /**
     * Checksum
     * @description The checksum of a file's content in hexadecimal.
     */
    Checksum: {
      algorithm: string;
      checksum: string;
    };
    /**
     * CodeEnd
     * @description The end of a code run, on the wire. `context`: the context it ran in; `lost`: the reason why the context started
     *     without its variables (never set for the first run). `after`: whether the context's variables are kept or were
     *     replaced; None: without a context. `results` is set only in a single JSON response.
     */
    CodeEnd: {
      after: ("kept" | "replaced") | null;
      context: string | null;
      cwd: string | null;
      denied: components["schemas"]["NetworkAttempt"][];
      duration_s: number;
      error: components["schemas"]["CodeError"] | null;
      exit_code: number | null;
      files: components["schemas"]["OutputFile"][];
      files_cut: boolean;
      hint: string | null;
      id: string;
      language: string;
      lost: string | null;
      oom_killed: boolean | null;
      results: components["schemas"]["CodeOutput"][];
      signal: string | null;
      started_at: number | null;
      stderr: string;
      stderr_base64: string | null;
      stdout: string;
      stdout_base64: string | null;
      timed_out: boolean;
      truncated: boolean;
      /**
       * @default {
       *     "cpu_s": 0,
       *     "memory_peak": null,
       *     "disk": null,
       *     "pids_peak": null,
       *     "memory": null,
       *     "pids": null,
       *     "memory_start": null,
       *     "cpu_peak_percent": null,
       *     "memory_byte_s": 0,
       *     "disk_byte_s": 0,
       *     "sent": 0,
       *     "received": 0,
       *     "wall_s": 0,
       *     "active_s": 0,
       *     "cost": null,
       *     "currency": null
       *   }
       */
      usage: components["schemas"]["Usage"];
      version: string | null;
    };
    /**
     * CodeError
     * @description The error of the code, in the words of its language. `line`: the line in the given code, if known. `properties`:
     *     further properties of a JavaScript error: its code, a path, a status.
     */
    CodeError: {
      line: number | null;
      message: string;
      name: string;
      properties: {
        [key: string]: unknown;
      };
      traceback: string;
    };
    /**
     * CodeOutput
     * @description A value or a picture in each of its formats, by MIME type: text as text, pictures as base64. `main`: the value of
     *     the last expression. `cut`: the formats that were shortened, or omitted for their size (those are not in `data`).
     */
    CodeOutput: {
      cut: string[];
      data: {
        [key: string]: string;
      };
      main: boolean;
    };
    /**
     * CodeRequest
     * @description POST …/code. `context`: the context to run in; None: the default context of the language, created if necessary.
     *     `fresh`: a temporary context, deleted afterwards. `cwd`, `env`, `user` apply to `fresh` runs and to languages
     *     without contexts; a context has its own. `files`: list the files created below its cwd.
     */
    CodeRequest: {
      code: string;
      context?: string | null;
      cwd?: string | null;
      env?: {
        [key: string]: string | null;
      };
      files?: boolean;
      fresh?: boolean;
      language?: string | null;
      stdin?: string | null;
      stdin_base64?: string | null;
      timeout?: number | null;
      user?: string | null;
    };
    /**
     * CommandTotals
     * @description All commands of a review that have ended. `failed`: those with another exit code than 0, or ended by a signal.
     *     `memory_peak`: of the largest process.
     */
    CommandTotals: {
      commands: number;
      cpu_s: number;
      duration_s: number;
      failed: number;
      memory_peak: number | null;
    };
    /**
     * ContextInfo
     * @description `state`: `new` has run nothing yet, or starts again with the next run; `lost` is the reason why its variables are
     *     gone. `default`: runs code that names no context. `process`: its current process.
     */
    ContextInfo: {
      created_at: number;
      cwd: string;
      default: boolean;
      language: string;
      lost: string | null;
      name: string;
      pid: number | null;
      process: string | null;
      runs: number;
      /** @enum {unknown} */
      state: "busy" | "idle" | "new";
      used_at: number;
      user: string;
      version: string | null;
      waiting: number;
    };
    /** ContextList */
    ContextList: {
      contexts: components["schemas"]["ContextInfo"][];
    };
    /**
     * ContextRequest
     * @description POST …/contexts: create a context for a language. An existing name is a conflict; without a name, one is
     *     generated.
     */
    ContextRequest: {
      cwd?: string | null;
      env?: {
        [key: string]: string | null;
      };
      language?: string;
      name?: string | null;
      user?: string | null;
    };
    /**
     * CreateImage
     * @description POST /v1/images. Without `snapshot`: build the built-in image `name` (default `base`); an existing image is
     *     rebuilt if this version builds it differently, or always with `rebuild`. With `snapshot`: create the image `name`
     *     from a snapshot's files, replacing an image of that name.
     */
    CreateImage: {
      name?: string | null;
      rebuild?: boolean;
      snapshot?: string | null;
    };
    /**
     * CreateRequest
     * @description POST /v1/sandboxes. In `env`, null unsets a variable of the image. Without `network`, the operator's default
     *     applies: no access, unless it was set. `volumes`: by path inside, the name of a volume, like "data" or "data:ro", or
     *     of a directory that the operator lists, like "@datasets".
     */
    CreateRequest: {
      budget?: components["schemas"]["Budget"] | null;
      env?: {
        [key: string]: string | null;
      };
      image?: string;
      labels?: {
        [key: string]: string;
      };
      lifecycle?: components["schemas"]["Lifecycle"];
      limits?: components["schemas"]["Limits"];
      name?: string | null;
      network?: components["schemas"]["Network"] | null;
      options?: components["schemas"]["Options"];
      secrets?: components["schemas"]["SecretValue"][];
      volumes?: {
        [key: string]: string;
      };
    };
    /**
     * Credentials
     * @description For one registry: a user and a password, or a token instead of a password. They are used once and not stored.
     */
    Credentials: {
      identity_token?: string;
      password?: string;
      username?: string;
    };
    /**
     * DecisionResult
     * @description `hunks`: the changed hunks in their new state (the parts of a split hunk). `held_back`: hunks flagged with a
     *     risk, and therefore not accepted by `all` or `paths`. `generated`: files that `all` or `paths` left out.
     */
    DecisionResult: {
      generated: components["schemas"]["GeneratedFiles"][];
      held_back: components["schemas"]["Hunk"][];
      hunks: components["schemas"]["Hunk"][];
    };
    /**
     * Decisions
     * @description POST …/review/decisions (scope `review`). Hunks by id, or `paths`, or `all` open ones; a hunk flagged with a risk
     *     is accepted only by its id, never by `all` or `paths`. `paths` may be globs (`*`, `?`, `**`); generated files are
     *     selected only by a path or glob that names them. `exclude`: globs of files that `all` and `paths` skip. `reopen`
     *     withdraws a decision. `split`: into its smallest parts. `edit`: accept with these new lines instead of the
     *     hunk's. `seen`: the displayed states of hunks; Conflict if one of them has another state now. Without it, a hunk
     *     that another caller decided differently is a Conflict.
     */
    Decisions: {
      accept?: string[];
      all?: boolean;
      do?: ("accept" | "reject" | "reopen") | null;
      edit?: {
        [key: string]: string;
      };
      exclude?: string[];
      paths?: string[];
      reason?: string | null;
      reject?: string[];
      reopen?: string[];
      seen?: {
        [key: string]: "accepted" | "applied" | "open" | "rejected";
      };
      split?: string[];
      tip?: string | null;
    };
    /**
     * DeletedSandbox
     * @description A deleted sandbox with a review that is kept. `accepted`: accepted hunks that were not applied. `files`: files
     *     that differ from the user's. `kept_until`: the end of `review.keep_deleted`; a full disk ends it earlier.
     */
    DeletedSandbox: {
      accepted: number;
      deleted_at: number;
      files: number;
      kept_until: number;
      origin: string | null;
      path: string;
      sandbox: components["schemas"]["SandboxInfo"];
    };
    /**
     * DeletedSandboxList
     * @description The last deleted sandbox first.
     */
    DeletedSandboxList: {
      sandboxes: components["schemas"]["DeletedSandbox"][];
    };
    /**
     * DiffStat
     * @description The differences from the user's files, without their lines. `left_out`, `generated`, `trouble`: as in a
     *     review.
     */
    DiffStat: {
      files: components["schemas"]["FileChange"][];
      generated: components["schemas"]["GeneratedFiles"][];
      left_out: components["schemas"]["LeftOut"][];
      trouble: string | null;
    };
    /**
     * Entries
     * @description The entries below a directory. `more`: the limit was reached; `skipped`: the number of unreadable directories.
     */
    Entries: {
      entries: components["schemas"]["FileInfo"][];
      more: boolean;
      skipped: number;
    };
    /**
     * ErrorBody
     * @description The error of a request. `code` is stable; `hint` names the remedy.
     */
    ErrorBody: {
      code: string;
      details: {
        [key: string]: unknown;
      } | null;
      hint: string | null;
      message: string;
    };
    /**
     * ErrorResponse
     * @description The body of every response that is not a success.
     */
    ErrorResponse: {
      error: components["schemas"]["ErrorBody"];
    };
    /**
     * Event
     * @description An event of a sandbox. `seq` increases with each event of this server; pass it as `since` to continue after a
     *     break.
     *
     *     `type`: sandbox.created .running .ready (its `on_start` commands run, and `ready` holds) .paused .stopped .failed
     *     .renamed .deleted, process.started, process.ended, limit.memory (processes were killed because the memory was used
     *     up), limit.pids (a process could not start), limit.disk (a command failed and the disk was full), limit.timeout,
     *     review.decided .applied .undone .kept, budget.warning, budget.exceeded, alert.NAME (a rule of the operator);
     *     `hello`: the first line of a followed stream, events after its `seq` follow; `lost`: requested events are gone, so
     *     check the current state again.
     */
    Event: {
      at: number;
      name: string | null;
      process: components["schemas"]["ProcessInfo"] | null;
      reason: string | null;
      sandbox: string | null;
      seq: number;
      type: string;
    };
    /**
     * FileChange
     * @description A path that differs from the user's files. `added`, `removed`: lines; None if the file has no lines to count.
     *     Modes as in git: 100644, 100755, 120000; None: absent.
     */
    FileChange: {
      added: number | null;
      binary: boolean;
      hunks: components["schemas"]["Hunk"][];
      /** @enum {unknown} */
      kind: "added" | "deleted" | "modified" | "renamed";
      large: boolean;
      new_mode: string | null;
      new_oid: string | null;
      new_size: number | null;
      old_mode: string | null;
      old_oid: string | null;
      old_path: string | null;
      old_size: number | null;
      path: string;
      raw_old_path: string | null;
      raw_path: string | null;
      removed: number | null;
      risk: string[];
      sha256: string | null;
    };
    /**
     * FileEvent
     * @description A change below a watched path. `to` is the new path of a `moved` entry. `overflow`: changes were missed; scan
     *     again. `token`: pass it as `since` to get later events.
     */
    FileEvent: {
      directory: boolean;
      path: string;
      raw_path: string | null;
      raw_to: string | null;
      to: string | null;
      token: string;
      /** @enum {unknown} */
      type: "created" | "modified" | "moved" | "overflow" | "removed";
    };
    /**
     * FileInfo
     * @description One entry of a directory, or the stat of a path. Links are not followed unless requested; `target` is the target
     *     of a link.
     *
     *     On the wire a path that is not UTF-8 is lossy, and `raw_path` has its bytes; likewise `target`. The SDK puts the
     *     bytes into `path`, `name` and `target` as Python does (`os.fsdecode`), so that every listed path can be read.
     */
    FileInfo: {
      gid: number;
      mode: number;
      mtime: number;
      name: string;
      path: string;
      raw_path: string | null;
      raw_target: string | null;
      size: number;
      target: string | null;
      /** @enum {unknown} */
      type: "device" | "directory" | "fifo" | "file" | "link" | "other" | "socket";
      uid: number;
    };
    /**
     * FileLines
     * @description Lines of a file without line breaks, from `start` to `end` (inclusive, counted from 1; `end` before `start`: no
     *     lines). `more`: the file continues with line `end + 1`. `cut`: only the beginning of a single long line is included.
     *     Bytes that are not UTF-8 are replaced, and `raw` has the bytes of all lines.
     */
    FileLines: {
      cut: boolean;
      end: number;
      lines: string[];
      more: boolean;
      raw: string | null;
      start: number;
    };
    /**
     * ForkRequest
     * @description POST /v1/sandboxes/{id}/fork. A `name` is for a single fork.
     */
    ForkRequest: {
      n?: number;
      name?: string | null;
    };
    /**
     * GeneratedFiles
     * @description New files that look generated (caches, build outputs), or match the review's `exclude`. `path`: their directory,
     *     with a slash; else the file or the pattern. `files`: their number. A path or glob that names them selects them.
     */
    GeneratedFiles: {
      files: number;
      path: string;
    };
    /**
     * Handler
     * @description A rule that changes HTTP requests. It opens nothing: the policy must allow the host, and for a `redirect` the new
     *     host too. `host`: `[METHODS ]HOST[:PORTS][/PATH]`, like a rule of `Network.allow`; the first handler that covers a
     *     request handles it. `set_headers` replaces headers, `add_headers` adds them, `remove_headers` removes them; the
     *     fields with `response_` do so in the response. `redirect`: send the request to another host. `answer`: answer it
     *     without sending it. `callback`: a client decides about requests, responses or both, within `timeout` seconds;
     *     without the client, the requests fail. `bodies`: the client receives bodies of up to 1 MiB.
     */
    Handler: {
      add_headers?: {
        [key: string]: string;
      };
      answer?: components["schemas"]["HttpResponse"] | null;
      bodies?: boolean;
      callback?: ("both" | "request" | "response") | null;
      host: string;
      redirect?: string | null;
      remove_headers?: string[];
      response_add_headers?: {
        [key: string]: string;
      };
      response_remove_headers?: string[];
      response_set_headers?: {
        [key: string]: string;
      };
      set_headers?: {
        [key: string]: string;
      };
      timeout?: string | number | null;
    };
    /**
     * HandlerCall
     * @description A request, or with `response` a response, that waits for the decision of a client's handler.
     */
    HandlerCall: {
      ends_at: number;
      host: string;
      id: string;
      request: components["schemas"]["HttpRequest"];
      response: components["schemas"]["HttpResponse"] | null;
      sandbox: string;
    };
    /**
     * HandlerDecision
     * @description POST …/network/handlers/{call}. Without any field, the message passes unchanged. `headers`: all headers of the
     *     request. `redirect`: its new destination. `response`: the answer in place of the host's; for a response without a
     *     body, its headers only. `error`: the handler failed, and the request fails with it.
     */
    HandlerDecision: {
      error?: string | null;
      headers?: [
        string,
        string
      ][] | null;
      redirect?: string | null;
      response?: components["schemas"]["HttpResponse"] | null;
    };
    /** Health */
    Health: {
      ok: boolean;
    };
    /**
     * History
     * @description Oldest first. `agent`: exported refs of the agent's own repository, with their commits. `truncated`: older
     *     entries exist. `totals`: of all commands, also older ones. `trouble`: as in a review.
     */
    History: {
      agent: {
        [key: string]: string;
      };
      entries: components["schemas"]["LedgerEntry"][];
      /**
       * @default {
       *     "commands": 0,
       *     "failed": 0,
       *     "duration_s": 0,
       *     "cpu_s": 0,
       *     "memory_peak": null
       *   }
       */
      totals: components["schemas"]["CommandTotals"];
      trouble: string | null;
      truncated: boolean;
    };
    /**
     * HttpRequest
     * @description A request of a program in a sandbox, before secrets are injected. `headers`: without Host and the headers that
     *     frame a message. `body`: only for a handler with `bodies=True`. `redirect`: its new destination.
     */
    HttpRequest: {
      body: string | null;
      headers: [
        string,
        string
      ][];
      method: string;
      process: string | null;
      redirect: string | null;
      url: string;
    };
    /**
     * HttpResponse
     * @description A response. `body`: None if the handler does not receive or change it. Content-Length is not a
     *     header here: it follows from the body.
     */
    HttpResponse: {
      body?: string | null;
      headers?: [
        string,
        string
      ][] | {
        [key: string]: string;
      };
      status?: number;
    };
    /**
     * Hunk
     * @description The unit of approval. `id` is derived from its content: other content is another hunk. `text` has its lines as
     *     in a patch (prefixed ' ', '-', '+', '\\ No newline…'), with three lines of context and without its `@@` line; `raw`
     *     the same if it is not UTF-8; truncated after 64 KiB (`truncated`). `risk`: why it must be accepted individually.
     *     `edited`: the lines to apply in place of its new lines. `decided_at`, `decided_by`: the time and the
     *     reviewer of its decision: the ID of a token, or the owner for a user of the unix socket.
     */
    Hunk: {
      decided_at: number | null;
      decided_by: string | null;
      edited: string | null;
      heading: string;
      id: string;
      /** @enum {unknown} */
      kind: "added" | "binary" | "deleted" | "large" | "link" | "mode" | "renamed" | "text";
      new_lines: number;
      new_start: number;
      old_lines: number;
      old_start: number;
      path: string;
      raw: string | null;
      raw_path: string | null;
      reason: string | null;
      risk: string[];
      splittable: boolean;
      /**
       * @default open
       * @enum {unknown}
       */
      state: "accepted" | "applied" | "open" | "rejected";
      text: string;
      truncated: boolean;
    };
    /**
     * HunkOrigin
     * @description The origin of a hunk: the commands that produced it, newest last, with their output (bounded).
     */
    HunkOrigin: {
      entries: components["schemas"]["LedgerEntry"][];
      hunk: components["schemas"]["Hunk"];
      output: {
        [key: string]: string;
      };
    };
    /**
     * ImageInfo
     * @description An image in the store. `size` is its disk space, of which `shared` is used by other images too. `recipe`: the
     *     digest of the build, for images that Skerry built. `source` and `platform`: origin and platform of a pulled image.
     *     `entrypoint` and `cmd`: the default command. `kit`: the descriptor of a pulled Docker sandbox kit.
     */
    ImageInfo: {
      cmd: string[];
      created_at: number;
      cwd: string;
      digest: string;
      entrypoint: string[];
      env: {
        [key: string]: string;
      };
      kit: string | null;
      layers: string[];
      name: string;
      platform: string | null;
      recipe: string | null;
      shared: number;
      size: number;
      source: string | null;
      user: string;
    };
    /**
     * ImageLine
     * @description One line of an operation on images: exactly one field is set.
     */
    ImageLine: {
      error?: components["schemas"]["ErrorBody"] | null;
      image?: components["schemas"]["ImageInfo"] | null;
      progress?: components["schemas"]["Progress"] | null;
      verified?: components["schemas"]["VerifyResult"] | null;
    };
    /** ImageList */
    ImageList: {
      images: components["schemas"]["ImageInfo"][];
    };
    /**
     * ImportedImage
     * @description An imported image; `notices` as for a snapshot.
     */
    ImportedImage: {
      image: components["schemas"]["ImageInfo"];
      notices: string[];
    };
    /**
     * ImportedSnapshot
     * @description `notices`: parts of the archive that were skipped, with the reason.
     */
    ImportedSnapshot: {
      notices: string[];
      snapshot: components["schemas"]["SnapshotInfo"];
    };
    /**
     * ImportedVolume
     * @description `notices`: parts of the archive that were left out, with the reason.
     */
    ImportedVolume: {
      notices: string[];
      volume: components["schemas"]["VolumeInfo"];
    };
    /**
     * Isolation
     * @description The isolation between a sandbox and the host, and the waived guarantees.
     */
    Isolation: {
      details: {
        [key: string]: unknown;
      };
      guarantees: string[];
      runtime: string;
      runtime_version: string;
      waived: string[];
    };
    /**
     * LanguageInfo
     * @description A language as …/languages shows it. `version`: the version found in this sandbox; None: its toolchain is missing,
     *     and `missing` names the way to install it. `how`: the argv that runs a file, for display. `versions`: the versions
     *     that can be requested (`python@3.12`), each with its image. `image`: an image with the tools of a language that
     *     `base` lacks, for code in a new sandbox whose image is not named; `installed`: it has been built.
     */
    LanguageInfo: {
      aliases: string[];
      compiled: boolean;
      contexts: boolean;
      how: string;
      image: string | null;
      installed: boolean;
      missing: string | null;
      name: string;
      version: string | null;
      versions: {
        [key: string]: string;
      };
    };
    /**
     * LanguageList
     * @description `max_timeout`: the operator's maximum run time in seconds; None: unlimited.
     */
    LanguageList: {
      languages: components["schemas"]["LanguageInfo"][];
      max_timeout: number | null;
    };
    /**
     * LayerState
     * @description The state of a layer on disk, with the images that use it.
     */
    LayerState: {
      images: string[];
      layer: string;
      ok: boolean;
    };
    /**
     * LedgerEntry
     * @description A command and its changes. `kind`: `base` is the import, `command` a command, `background` changes while no
     *     command ran, `api` changes through the files API, `pulled` the user's later edits, `applied` and `unapplied` the
     *     user's. `commit`: the last commit of the ledger with its changes; empty if nothing changed. `steps`: its commits, if
     *     there are several. `runs`: the ID of the process, or of the run in a context. `also`: other commands that ran at the
     *     same time: their changes cannot be separated. `running`: the command had not ended. `signal`: the signal that ended
     *     it. `cpu_s`, `memory_peak`: its usage, if known. `hosts`: hosts that it contacted. `patch`: if requested,
     *     bounded. `within`: for a tool call that an agent reported, the command of the agent; then `command` is the title of
     *     the tool call, in the agent's words, and `exit_code` is 1 if it reported a failure.
     */
    LedgerEntry: {
      added: number;
      also: string[];
      at: number;
      command: string;
      commit: string;
      cpu_s: number | null;
      duration_s: number | null;
      exit_code: number | null;
      files: number;
      hosts: string[];
      /** @enum {unknown} */
      kind: "api" | "applied" | "background" | "base" | "command" | "pulled" | "rollback" | "unapplied";
      left_out: number;
      memory_peak: number | null;
      patch: string | null;
      processes: string[];
      removed: number;
      running: boolean;
      runs: string[];
      signal: string | null;
      steps: components["schemas"]["LedgerStep"][];
      truncated: boolean;
      within: string | null;
    };
    /**
     * LedgerStep
     * @description A commit of the ledger that was made while a command ran.
     */
    LedgerStep: {
      added: number;
      at: number;
      commit: string;
      files: number;
      removed: number;
    };
    /**
     * LeftOut
     * @description An entry of the workspace that no patch can carry, with the reason: a name that git cannot store, a device, a
     *     nested `.git`. `new`: it appeared after the start of the review.
     */
    LeftOut: {
      new: boolean;
      path: string;
      raw_path: string | null;
      reason: string;
    };
    /**
     * Lifecycle
     * @description The automatic start and end of a sandbox. Idle: no call, no process, no terminal, no traffic. A time may be
     *     "never".
     *
     *     `on_start`: shell lines that are started in the background at each start and resume. `ready`: the condition for
     *     which starts wait, at most `ready_timeout` (60 s): a port, `http://localhost:PORT/PATH`, or a shell line that
     *     succeeds. Empty values remove them.
     */
    Lifecycle: {
      auto_resume?: boolean | null;
      idle_timeout?: string | number | null;
      max_lifetime?: string | number | null;
      on_idle?: ("delete" | "pause" | "stop") | null;
      on_start?: string[] | null;
      ready?: string | number | null;
      ready_timeout?: string | number | null;
    };
    /**
     * Limits
     * @description The resources of a sandbox. Defaults: 1 CPU, 2 GiB of memory, 5 GiB of disk, 512 processes, 65,536 open files,
     *     unless the operator set others.
     */
    Limits: {
      cpus?: number | null;
      disk?: string | number | null;
      memory?: string | number | null;
      open_files?: number | null;
      pids?: number | null;
    };
    /**
     * McpError
     * @description `code`: of JSON-RPC.
     */
    McpError: {
      code: number;
      message: string;
    };
    /**
     * McpErrorResponse
     * @description An error in the form of the Model Context Protocol (JSON-RPC).
     */
    McpErrorResponse: {
      error: components["schemas"]["McpError"];
      id: string | number | null;
      jsonrpc: string;
    };
    /**
     * Network
     * @description The destinations that a sandbox may reach; all others are denied.
     *
     *     A rule is `[METHODS ]HOST[:PORTS][/PATH][@ADDRESSES]`: a name, `*.name` for all names below it, an address or a
     *     CIDR. Without ports: 80 and 443; `:*` is every port. `deny` wins. `inspect`: hosts for which TLS is intercepted, so
     *     that methods and paths are visible. `@10.0.0.0/8`: the name may resolve to a private address, which a name alone
     *     does not permit; addresses of the server's machine also need the operator's `max.network`. `presets`: names that
     *     the client resolves on its own machine. `peers`: other sandboxes by their
     *     name inside. `bytes_per_second`, `max_bytes` in total and `max_connections` at once bound its traffic.
     *     `cassette="record"`: record the HTTP exchanges, and for that intercept TLS to every host; `"replay"`: serve the
     *     sandbox's cassette, and let nothing out. Without rules, a replay looks up every host in the cassette. `handlers`
     *     change, redirect or answer requests. `mirror`: hosts whose exchanges are written to the trace; for both, TLS is
     *     intercepted.
     */
    Network: {
      allow?: string[];
      approval_timeout?: string | number | null;
      bytes_per_second?: string | number | null;
      cassette?: ("record" | "replay") | null;
      deny?: string[];
      handlers?: components["schemas"]["Handler"][];
      inspect?: string[];
      max_bytes?: string | number | null;
      max_connections?: number | null;
      mirror?: string[];
      /**
       * @default deny
       * @enum {unknown}
       */
      on_unknown?: "ask" | "deny" | "learn";
      peers?: {
        [key: string]: string;
      };
      presets?: (string | components["schemas"]["Preset"])[];
    };
    /**
     * NetworkAttempt
     * @description One attempt to reach a destination. `kind`: a name look-up, a connection, or a request inside a connection. `why`
     *     and `hint`: the rule that decided, and the change that would decide otherwise; for an allowed attempt, that the
     *     destination was unreachable. `count`: the number of merged attempts. An allowed attempt is reported at its start and
     *     again, with the same `id`, at its end.
     */
    NetworkAttempt: {
      address: string | null;
      at: number;
      count: number;
      /** @enum {unknown} */
      decision: "allowed" | "denied";
      duration_s: number | null;
      ended: boolean;
      hint: string | null;
      host: string;
      id: string;
      /** @enum {unknown} */
      kind: "connection" | "datagram" | "name" | "request";
      method: string | null;
      path: string | null;
      port: number | null;
      process: string | null;
      received: number;
      rule: string | null;
      secrets: string[];
      sent: number;
      seq: number;
      why: string;
    };
    /**
     * NetworkChange
     * @description PATCH …/network: rules to add to `allow` or `deny`, and presets to add. An allowed rule is removed from `deny`,
     *     and the reverse; a preset replaces one of the same name. `handlers` to add: a handler replaces one of the same
     *     `host`; `remove_handlers`: the hosts of handlers to remove. `mirror`: the new list of mirrored hosts.
     */
    NetworkChange: {
      allow?: string[];
      deny?: string[];
      handlers?: components["schemas"]["Handler"][];
      mirror?: string[] | null;
      presets?: components["schemas"]["Preset"][];
      remove_handlers?: string[];
    };
    /**
     * NetworkInfo
     * @description The current policy, and the traffic since the sandbox was created.
     */
    NetworkInfo: {
      network: components["schemas"]["Network"];
      open_connections: number;
      ready: boolean;
      received: number;
      secrets: components["schemas"]["SecretForm"][];
      sent: number;
    };
    /**
     * Options
     * @description Rarely needed options. `waive_guarantees` names guarantees that this host may lack; `isolation` then shows them.
     *     `git_name`, `git_email`: the author of commits made inside; a user's configuration inside has precedence.
     *     `reproducible`: fix the host name, machine id, locale, time zone, hash seed and dates: runs can be repeated.
     *     `clock` also stops the clock at this time, like "2026-01-01T00:00:00Z".
     *     `read_only_root`: only /workspace, /tmp, the home directories and volumes can be written, also by root inside.
     *     `default_session`: `run` runs commands in the session `default`, which keeps the directory and variables.
     */
    Options: {
      auto_snapshot?: boolean;
      clock?: string | null;
      default_session?: boolean;
      git_email?: string | null;
      git_name?: string | null;
      read_only_root?: boolean;
      reproducible?: boolean;
      runtime?: string | null;
      sudo?: boolean;
      use_pool?: boolean;
      waive_guarantees?: string[];
    };
    /**
     * OutputFile
     * @description A file that code created or changed. `media_type`: derived from its name. `content`: set by `execute_code()`;
     *     None for a large file (over 1 MiB, or beyond 8 MiB in all) and for a file that was removed meanwhile.
     */
    OutputFile: {
      content: string | null;
      gid: number;
      media_type: string;
      mode: number;
      mtime: number;
      name: string;
      path: string;
      raw_path: string | null;
      raw_target: string | null;
      size: number;
      target: string | null;
      /** @enum {unknown} */
      type: "device" | "directory" | "fifo" | "file" | "link" | "other" | "socket";
      uid: number;
    };
    /**
     * OutputPage
     * @description GET …/processes/{process}/output: the output from an offset, both streams in order. `offset` is the start of the
     *     next page, `missing` the number of dropped bytes before it. Output that is not UTF-8 comes as base64 beside a lossy
     *     text. `more`: the journal holds more.
     */
    OutputPage: {
      data: string;
      data_base64: string | null;
      missing: number;
      more: boolean;
      offset: number;
      /**
       * @default running
       * @enum {unknown}
       */
      state: "exited" | "running";
    };
    /**
     * PackRequest
     * @description POST …/review/git/pack: the objects reachable from `wants`, without those reachable from `haves`.
     */
    PackRequest: {
      haves?: string[];
      wants: string[];
    };
    /**
     * PatchedFile
     * @description The effect of a diff on one file. `offsets`: the distance in lines of each hunk from its stated position.
     */
    PatchedFile: {
      /** @enum {unknown} */
      action: "changed" | "created" | "deleted";
      added: number;
      offsets: number[];
      path: string;
      raw_path: string | null;
      removed: number;
    };
    /** PatchResult */
    PatchResult: {
      files: components["schemas"]["PatchedFile"][];
    };
    /**
     * PatchSet
     * @description The patch set that `apply` writes. `digest`: of its content; a recorded apply names it. `entries`: the commits
     *     that the hunks came from, newest last. `held_back`: with `open=true`, open hunks that a bulk accept skips;
     *     `generated`: files that it skips.
     */
    PatchSet: {
      base: string;
      digest: string;
      entries: components["schemas"]["LedgerEntry"][];
      files: components["schemas"]["PatchSetFile"][];
      generated: components["schemas"]["GeneratedFiles"][];
      held_back: components["schemas"]["Hunk"][];
      origin: string | null;
      path: string;
      sandbox: string;
      tip: string;
    };
    /**
     * PatchSetFile
     * @description A file to apply: from `old` (the user's) to `new` (`old` with the accepted hunks only). Contents are blobs of the
     *     ledger; of a `large` file the sandbox's own file, which must have that hash.
     */
    PatchSetFile: {
      hunks: string[];
      /** @enum {unknown} */
      kind: "added" | "deleted" | "modified" | "renamed";
      large: boolean;
      new_mode: string | null;
      new_oid: string | null;
      new_size: number | null;
      old_mode: string | null;
      old_oid: string | null;
      old_path: string | null;
      old_size: number | null;
      path: string;
      raw_old_path: string | null;
      raw_path: string | null;
      sha256: string | null;
    };
    /**
     * PoolImage
     * @description The ready sandboxes of one image. `hits` and `misses`: creates since the server's start with and without a ready
     *     sandbox.
     */
    PoolImage: {
      hits: number;
      image: string;
      making: number;
      misses: number;
      ready: number;
      size: number;
    };
    /**
     * PoolInfo
     * @description `paused`: the reason why none is being prepared (low memory, disabled).
     */
    PoolInfo: {
      images: components["schemas"]["PoolImage"][];
      paused: string | null;
      size: number;
    };
    /**
     * PoolRequest
     * @description PUT /v1/pool: the number of ready sandboxes of an image, until the server stops.
     */
    PoolRequest: {
      image: string;
      size: number;
    };
    /**
     * PortState
     * @description Whether a process inside listens on a port; if not, `last` is the last observation. `status`: of its HTTP
     *     response, if one was requested. `ended`: the process that should open it has ended.
     */
    PortState: {
      ended: boolean;
      last: string;
      open: boolean;
      status: number | null;
    };
    /**
     * Preset
     * @description The client machine's setup to reach a service (pip's index, npm's registry …), read there and sent with the
     *     request: the necessary rules, the variables that carry the setup inside, the trusted certificates, and the proxy. It
     *     never has passwords: they travel as secrets.
     */
    Preset: {
      allow?: string[];
      certificates?: string;
      env?: {
        [key: string]: string;
      };
      files?: {
        [key: string]: string;
      };
      name: string;
      proxy?: string | null;
    };
    /**
     * PreviewInfo
     * @description A port inside that has a URL. `path_url` is for clients that cannot resolve names below localhost. `token` is
     *     None for a public preview; only the owner sees it.
     */
    PreviewInfo: {
      created_at: number;
      expires: number | null;
      id: string;
      name: string | null;
      path_url: string;
      port: number;
      public: boolean;
      token: string | null;
      url: string;
    };
    /** PreviewList */
    PreviewList: {
      previews: components["schemas"]["PreviewInfo"][];
    };
    /**
     * PreviewRequest
     * @description POST …/previews. `name` takes the place of the port in the host name. `token`: one that the caller chose. Without
     *     them, an existing preview keeps its name and token.
     */
    PreviewRequest: {
      expires?: string | number | null;
      name?: string | null;
      port: number;
      public?: boolean;
      token?: string | null;
    };
    /**
     * ProcessInfo
     * @description A process as …/processes lists it. `children`: running pids that it left behind. Its output is kept from byte
     *     `kept_from` to byte `offset`, counted over stdout and stderr together. `status`: its state and
     *     its end in one word.
     */
    ProcessInfo: {
      children: number[];
      cmd: string | string[];
      ended_at: number | null;
      exit_code: number | null;
      id: string;
      kept_from: number;
      offset: number;
      pid: number;
      pty: boolean;
      session: string | null;
      signal: string | null;
      started_at: number;
      /** @enum {unknown} */
      state: "exited" | "running";
      /**
       * @default running
       * @enum {unknown}
       */
      status: "completed" | "failed" | "killed" | "running" | "starting";
      timed_out: boolean;
      user: string;
    };
    /** ProcessList */
    ProcessList: {
      processes: components["schemas"]["ProcessInfo"][];
    };
    /**
     * Progress
     * @description One step of a long operation. `done` and `total` in bytes or steps; total 0: unknown.
     */
    Progress: {
      done: number;
      eta_s: number | null;
      message: string;
      stage: string;
      total: number;
    };
    /**
     * PruneRequest
     * @description `all`: also remove images without dependents, not only unused layers.
     */
    PruneRequest: {
      all?: boolean;
    };
    /**
     * PruneResult
     * @description The result of a prune: removed images by name, the number of layers, and the freed bytes.
     */
    PruneResult: {
      bytes: number;
      images: string[];
      layers: number;
    };
    /**
     * Pty
     * @description A terminal's size in characters.
     */
    Pty: {
      cols?: number;
      rows?: number;
    };
    /**
     * PulledFile
     * @description `how`: `written` as the user has it, `merged` with changes of the sandbox, `removed`, `same`: the sandbox had
     *     it.
     */
    PulledFile: {
      /** @enum {unknown} */
      how: "merged" | "removed" | "same" | "written";
      path: string;
      raw_path: string | null;
    };
    /**
     * PullRequest
     * @description POST /v1/images/pull. `name`: the name in the store; None: `reference` as written. `platform`: os/architecture;
     *     None: the host's. `insecure`: permit a registry without TLS, or with an unverified certificate.
     */
    PullRequest: {
      credentials?: components["schemas"]["Credentials"] | null;
      insecure?: boolean;
      name?: string | null;
      platform?: string | null;
      reference: string;
    };
    /**
     * PullResult
     * @description The result of a pull. `commit`: its entry in the ledger, if the sandbox's files changed. `head`: the commit that
     *     the copy is based on now.
     */
    PullResult: {
      commit: string | null;
      files: components["schemas"]["PulledFile"][];
      head: string | null;
      sandbox: string;
    };
    /**
     * Readiness
     * @description `problems`: disk (less than `storage.min_free_space` is free), audit (the audit log cannot be written),
     *     network (the worker is down), full (`max.sandboxes` are live), stopping.
     */
    Readiness: {
      ok: boolean;
      problems: string[];
    };
    /**
     * RenameRequest
     * @description POST /v1/sandboxes/{id}/rename.
     */
    RenameRequest: {
      name: string;
    };
    /**
     * ReplaceRequest
     * @description Replace `old` by `new`. `old` must occur exactly `count` times (None: at least once). Either may be given as
     *     bytes instead.
     */
    ReplaceRequest: {
      count?: number | null;
      new?: string | null;
      new_base64?: string | null;
      old?: string | null;
      old_base64?: string | null;
    };
    /**
     * ReplaceResult
     * @description A text was replaced `count` times; `lines` has the first twenty line numbers.
     */
    ReplaceResult: {
      count: number;
      lines: number[];
    };
    /**
     * ReplayRequest
     * @description POST /v1/replays: create a sandbox from the start of a trace. The image is found by its digest, also if it has
     *     another name now, or is a snapshot; `image` is its recorded name. Without `network`, nothing is allowed, also where
     *     the operator's default allows something. `on_start`, `ready`, `ready_timeout`: as in a lifecycle, but without the
     *     operator's defaults. `keep`: do not delete it when it is idle.
     */
    ReplayRequest: {
      env?: {
        [key: string]: string | null;
      };
      image?: string;
      image_digest: string;
      keep?: boolean;
      limits?: components["schemas"]["Limits"];
      network?: components["schemas"]["Network"];
      on_start?: string[];
      options?: components["schemas"]["Options"];
      ready?: string | number | null;
      ready_timeout?: string | number | null;
      secrets?: components["schemas"]["SecretValue"][];
    };
    /** RepoCopies */
    RepoCopies: {
      copies: components["schemas"]["RepoCopy"][];
    };
    /**
     * RepoCopy
     * @description The copy of a repository in a sandbox. `head`: the commit that it is based on. `copied_at`: when the user's files
     *     were read last, by the client's clock, in seconds since 1970. `listing`: the `listing_of` these files.
     */
    RepoCopy: {
      copied_at: number | null;
      head: string | null;
      listing: string | null;
      name: string | null;
      origin: string | null;
      sandbox: string;
    };
    /** Report */
    Report: {
      checks: components["schemas"]["Check"][];
      ok: boolean;
    };
    /**
     * ReportedCall
     * @description A tool call that a coding agent reports. `id`: unique in its process. `name`: its title, like `Edit app.py`.
     *     `paths`: the files that it names, absolute or relative to the workspace. `state`: `started`, `ended` or `failed`; a
     *     call that is reported only at its end has started then. A running call may be reported again, with another name.
     */
    ReportedCall: {
      id: string;
      name?: string;
      paths?: string[];
      /**
       * @default started
       * @enum {unknown}
       */
      state?: "ended" | "failed" | "started";
    };
    /**
     * ReportedCalls
     * @description POST …/processes/{process}/tool-calls: tool calls of a running command, in their order. Changes of files while a
     *     tool call runs are attributed to it.
     */
    ReportedCalls: {
      calls: components["schemas"]["ReportedCall"][];
    };
    /**
     * ResizeRequest
     * @description The new size of a terminal in characters.
     */
    ResizeRequest: {
      cols: number;
      rows: number;
    };
    /**
     * RetryRequest
     * @description `ids`: deliveries; none: all dead deliveries of the webhook.
     */
    RetryRequest: {
      ids?: string[];
    };
    /**
     * Review
     * @description All differences from the user's files; iterable as a list of files. `base`, `tip`: commits of the ledger.
     *     `origin`: the source named by the client (opaque). `ignored`: new paths that the project's own ignore rules exclude.
     *     `generated`: files that are kept apart; no other field counts them.
     *     `truncated`: files or hunks are missing from the lists. `trouble`: why the latest changes are missing: a full disk,
     *     a full ledger.
     */
    Review: {
      accepted: number;
      applied: number;
      base: string;
      failed: components["schemas"]["LedgerEntry"][];
      files: components["schemas"]["FileChange"][];
      generated: components["schemas"]["GeneratedFiles"][];
      ignored: string[];
      left_out: components["schemas"]["LeftOut"][];
      open: number;
      origin: string | null;
      path: string;
      rejected: number;
      sandbox: string;
      tip: string;
      trouble: string | null;
      truncated: boolean;
    };
    /**
     * ReviewEvent
     * @description An event of `watch`. `change`: a new commit, with its changed files (hunks are those of the whole review that it
     *     touched); `command`: a command ended without changes since its last commit, `entry` has its outcome; `decision`:
     *     hunks with a changed state; `lost`: the watcher was too slow, read the review again; `trouble`: the reason why
     *     changes cannot be recorded; None: they can again.
     */
    ReviewEvent: {
      entry: components["schemas"]["LedgerEntry"] | null;
      files: components["schemas"]["FileChange"][];
      hunks: components["schemas"]["Hunk"][];
      sandbox: string;
      tip: string;
      trouble: string | null;
      /** @enum {unknown} */
      type: "change" | "command" | "decision" | "lost" | "trouble";
    };
    /**
     * ReviewRefs
     * @description A review as a git remote: the ledger's tip, and the agent's own refs (`heads/…`, `tags/…`). `refused`: refs of
     *     the agent that were not exported, with the reason.
     */
    ReviewRefs: {
      agent: {
        [key: string]: string;
      };
      name: string | null;
      origin: string | null;
      refused: {
        [key: string]: string;
      };
      sandbox: string;
      tip: string;
    };
    /** ReviewRefsList */
    ReviewRefsList: {
      reviews: components["schemas"]["ReviewRefs"][];
    };
    /**
     * RollbackRequest
     * @description POST /v1/sandboxes/{id}/rollback: to a snapshot, or a number of commands back.
     */
    RollbackRequest: {
      snapshot?: string | null;
      steps?: number | null;
    };
    /**
     * RunRequest
     * @description POST /v1/sandboxes/{id}/processes. `cmd`: a string is a shell line, a list is an argv; None is the image's
     *     command.
     *
     *     stdin: text, or bytes as base64, or (`stdin_stream`) data sent to …/processes/{id}/stdin afterwards. `pty`: start it
     *     in a terminal. `session`: run it in that session's shell. `journal`: the amount of output to keep. `id`: its ID;
     *     taken ones are a conflict. `auto_remove`: remove a background process, with its output, some seconds after its
     *     end.
     */
    RunRequest: {
      auto_remove?: boolean;
      cmd?: string | string[] | null;
      cwd?: string | null;
      env?: {
        [key: string]: string | null;
      };
      id?: string | null;
      journal?: string | number | null;
      pty?: components["schemas"]["Pty"] | null;
      session?: string | null;
      stdin?: string | null;
      stdin_base64?: string | null;
      stdin_stream?: boolean;
      timeout?: number | null;
      user?: string | null;
    };
    /**
     * RunResult
     * @description The end of a run, on the wire. A stream that is not UTF-8 comes as base64 beside a lossy text. `cwd`: the
     *     session's current directory. `denied`: network attempts that the policy denied.
     */
    RunResult: {
      cwd: string | null;
      denied: components["schemas"]["NetworkAttempt"][];
      duration_s: number;
      exit_code: number | null;
      hint: string | null;
      id: string;
      oom_killed: boolean | null;
      signal: string | null;
      started_at: number | null;
      stderr: string;
      stderr_base64: string | null;
      stdout: string;
      stdout_base64: string | null;
      timed_out: boolean;
      truncated: boolean;
      /**
       * @default {
       *     "cpu_s": 0,
       *     "memory_peak": null,
       *     "disk": null,
       *     "pids_peak": null,
       *     "memory": null,
       *     "pids": null,
       *     "memory_start": null,
       *     "cpu_peak_percent": null,
       *     "memory_byte_s": 0,
       *     "disk_byte_s": 0,
       *     "sent": 0,
       *     "received": 0,
       *     "wall_s": 0,
       *     "active_s": 0,
       *     "cost": null,
       *     "currency": null
       *   }
       */
      usage: components["schemas"]["Usage"];
    };
    /**
     * SandboxInfo
     * @description A sandbox as the API shows it.
     */
    SandboxInfo: {
      budget: components["schemas"]["Budget"] | null;
      created_at: number;
      ends_at: number | null;
      env: {
        [key: string]: string | null;
      };
      id: string;
      image: string;
      image_digest: string | null;
      isolation: components["schemas"]["Isolation"] | null;
      labels: {
        [key: string]: string;
      };
      lifecycle: components["schemas"]["Lifecycle"];
      limits: components["schemas"]["Limits"];
      name: string | null;
      network: components["schemas"]["Network"];
      options: components["schemas"]["Options"];
      owner: string;
      reason: string | null;
      secrets: components["schemas"]["SecretForm"][];
      started_at: number | null;
      /** @enum {unknown} */
      state: "creating" | "failed" | "paused" | "running" | "stopped";
      volumes: {
        [key: string]: string;
      };
    };
    /** SandboxList */
    SandboxList: {
      sandboxes: components["schemas"]["SandboxInfo"][];
    };
    /**
     * SandboxStats
     * @description The current resource usage of a sandbox, with its limits. `at`: the time of the measurement. `sent` and
     *     `received`: bytes to and from other hosts since the sandbox was created.
     */
    SandboxStats: {
      at: number;
      id: string;
      limits: components["schemas"]["Limits"];
      name: string | null;
      received: number;
      sent: number;
      /** @enum {unknown} */
      state: "creating" | "failed" | "paused" | "running" | "stopped";
      usage: components["schemas"]["Usage"];
    };
    /** SandboxStatsList */
    SandboxStatsList: {
      sandboxes: components["schemas"]["SandboxStats"][];
    };
    /**
     * SearchMatch
     * @description A matching line with its context lines. `line` counts from 1; `cut`: the line is longer than `text`, which has
     *     the match. Bytes that are not UTF-8 are replaced.
     */
    SearchMatch: {
      after: string[];
      before: string[];
      cut: boolean;
      line: number;
      path: string;
      raw_path: string | null;
      text: string;
    };
    /**
     * SearchResult
     * @description The result of a search. `more`: the limit was reached; `skipped`: the number of files and directories that could
     *     not be searched (unreadable, binary, lines too long), so that an empty result is not taken as proof.
     */
    SearchResult: {
      matches: components["schemas"]["SearchMatch"][];
      more: boolean;
      searched: number;
      skipped: number;
    };
    /**
     * SecretForm
     * @description A secret without its value: its variable inside, its permitted hosts, and its position in a request. `header`:
     *     like "Authorization: Bearer {}"; `query`: the name of a parameter; `basic`: the user of an HTTP basic login. With
     *     none of them: every occurrence of the placeholder in a header, the query or a basic login.
     */
    SecretForm: {
      basic?: string | null;
      header?: string | null;
      hosts: string[];
      name: string;
      query?: string | null;
    };
    /**
     * SecretValue
     * @description A secret with its value, in the only request that carries it. `repr` hides the value.
     */
    SecretValue: {
      basic?: string | null;
      header?: string | null;
      hosts: string[];
      name: string;
      query?: string | null;
      value: string;
    };
    /**
     * ServerInfo
     * @description The server. Details of the host (pid, directories, addresses, stalls) are shown to admins only. `network`: the
     *     network worker is starting, ready or down; until it is ready, all sandboxes have no network. `stalls`: how often the
     *     event loop was blocked for 0.1 seconds or more; the log names the routes. `longest_busy_s`: the longest of them
     *     without the time in which the machine did other work.
     */
    ServerInfo: {
      address: string | null;
      addresses: string[];
      build: string;
      longest_busy_s: number | null;
      longest_stall_s: number | null;
      network: string;
      pid: number | null;
      runtime: string;
      sandboxes: number;
      stalls: number | null;
      started_at: number;
      state_dir: string | null;
      storage: string;
      uptime_s: number;
      version: string;
    };
    /**
     * SessionInfo
     * @description A shell that keeps its state between commands. `busy`: a command is running; `waiting`: the number of queued
     *     commands. `timeout`: of commands without another one; None: the caller's default.
     */
    SessionInfo: {
      busy: boolean;
      created_at: number;
      cwd: string;
      name: string;
      timeout: number | null;
      user: string;
      waiting: number;
    };
    /** SessionList */
    SessionList: {
      sessions: components["schemas"]["SessionInfo"][];
    };
    /**
     * SessionRequest
     * @description POST …/sessions: get or create the session of that name. The other fields apply to a new session: its user, its
     *     first directory, variables that override the sandbox's (null unsets one), and the timeout of its commands in
     *     seconds.
     */
    SessionRequest: {
      cwd?: string | null;
      env?: {
        [key: string]: string | null;
      };
      name: string;
      timeout?: number | null;
      user?: string | null;
    };
    /**
     * SignalRequest
     * @description A signal name without SIG; KILL ends the whole process tree.
     */
    SignalRequest: {
      signal: string;
    };
    /**
     * Skipped
     * @description An entry that a transfer skipped, with the reason. `path` is relative to the transferred directory.
     */
    Skipped: {
      path: string;
      raw_path: string | null;
      reason: string;
    };
    /**
     * SnapshotChange
     * @description A path that differs between two states; `type` is its present type, or the former type of a deleted path. Paths
     *     that are not UTF-8 are encoded as in `FileInfo`.
     */
    SnapshotChange: {
      /** @enum {unknown} */
      kind: "added" | "deleted" | "modified";
      path: string;
      raw_path: string | null;
      /**
       * @default file
       * @enum {unknown}
       */
      type: "directory" | "file" | "link" | "other";
    };
    /**
     * SnapshotDiff
     * @description Parents before their content, names in byte order; iterable as a list. `truncated`: the list is incomplete.
     */
    SnapshotDiff: {
      changes: components["schemas"]["SnapshotChange"][];
      truncated: boolean;
    };
    /**
     * SnapshotInfo
     * @description The files of a sandbox at one moment. Usable wherever an image is, by its id or name.
     *
     *     `own` is its disk space beyond the layers below it; None: not known yet. `sync_s` and `frozen_s`: the time to write
     *     out pending data, and the time that the sandbox was frozen. `unit`: the tree that the snapshot was taken of; a
     *     rollback gives a sandbox another tree. `step` numbers the snapshots before each command
     *     (`Options(auto_snapshot=True)`). `path`: it holds this directory only, and is restored into a sandbox instead of
     *     being used as an image. `expires_at`: it is removed then, or when nothing needs it any more.
     */
    SnapshotInfo: {
      cmd: string[];
      created_at: number;
      cwd: string;
      digest: string;
      entrypoint: string[];
      env: {
        [key: string]: string;
      };
      expires_at: number | null;
      frozen_s: number | null;
      id: string;
      image: string | null;
      /**
       * @default kept
       * @enum {unknown}
       */
      kind: "auto" | "build" | "kept";
      layers: string[];
      name: string | null;
      own: number | null;
      owner: string;
      path: string | null;
      sandbox: string | null;
      step: number | null;
      sync_s: number | null;
      unit: string | null;
      user: string;
    };
    /** SnapshotList */
    SnapshotList: {
      snapshots: components["schemas"]["SnapshotInfo"][];
    };
    /**
     * SnapshotRequest
     * @description POST /v1/sandboxes/{id}/snapshots. `key`: identifies a step of a build, which needs no name; an existing snapshot
     *     of that key is returned, unless `replace`: then the new one takes the key. The other fields override the image's
     *     defaults for sandboxes that start from it; `env` is added to the image's. `path`: of this directory only, absolute
     *     or relative to the sandbox's working directory. `ttl`: remove it after this time, once nothing needs it.
     */
    SnapshotRequest: {
      cmd?: string[] | null;
      cwd?: string | null;
      entrypoint?: string[] | null;
      env?: {
        [key: string]: string;
      } | null;
      key?: string | null;
      name?: string | null;
      path?: string | null;
      replace?: boolean;
      ttl?: string | number | null;
      user?: string | null;
    };
    /**
     * TerminalTicket
     * @description A ticket that opens one terminal of a sandbox, once: a browser sends it as a WebSocket protocol.
     */
    TerminalTicket: {
      expires_at: number;
      ticket: string;
    };
    /**
     * TokenInfo
     * @description A token without its secret. The token sees the sandboxes of `owner`.
     */
    TokenInfo: {
      created_at: number;
      id: string;
      note: string;
      owner: string;
      /** @enum {unknown} */
      scope: "admin" | "metrics" | "review" | "use";
      secret: string | null;
    };
    /** TokenList */
    TokenList: {
      tokens: components["schemas"]["TokenInfo"][];
    };
    /**
     * TokenRequest
     * @description A new token. Without `owner` it gets a new owner: it sees only its own resources.
     */
    TokenRequest: {
      note?: string;
      owner?: string | null;
      /** @enum {unknown} */
      scope: "admin" | "metrics" | "review" | "use";
    };
    /**
     * TraceChange
     * @description A changed file. `path` is absolute; `raw_path`: its bytes, if they are not UTF-8. `mode`: as git has it (100644,
     *     100755, 120000 for a link). `sha256` and `size`: of the new content, or of a link's target; without `mode`, the file
     *     was removed.
     */
    TraceChange: {
      mode?: string | null;
      path: string;
      raw_path?: string | null;
      sha256?: string | null;
      size?: number;
    };
    /**
     * TraceChanges
     * @description The files below `root` that changed since the last step of this kind. `commit`: the entry of the review's ledger.
     *     `processes`: the commands that can have made the changes; `running`: one of them had not ended.
     *     `omitted`: changed files above the maximum number; `sha256` covers them too: it is the hash of the JSON list of all
     *     changes, sorted by path.
     */
    TraceChanges: {
      commit?: string | null;
      files?: components["schemas"]["TraceChange"][];
      omitted?: number;
      processes?: string[];
      root: string;
      running?: boolean;
      sha256?: string;
    };
    /**
     * TraceContent
     * @description Bytes: an input, or an output stream. `size` and `sha256` are those of the whole, after secret values were masked
     *     (`masked`: how many bytes).
     *
     *     The kept bytes are in `text` (UTF-8), in `data` (base64), or in the blob with the SHA-256 hash `blob`. Of a content
     *     that is longer than its kept bytes, the first `head` kept bytes are its beginning, and the others its end.
     *     `left_out`: why nothing is kept, or why `sha256` is missing.
     */
    TraceContent: {
      blob?: string | null;
      data?: string | null;
      head?: number | null;
      left_out?: string | null;
      masked?: number;
      sha256?: string | null;
      size: number;
      text?: string | null;
    };
    /**
     * TraceEnd
     * @description A line that ends the step `of`. `last`: the number of the newest step so far. `result`: details of other steps
     *     than commands. `results`: the values of code, as a JSON list.
     */
    TraceEnd: {
      at: number;
      cwd?: string | null;
      duration_s?: number;
      error?: components["schemas"]["TraceError"] | null;
      exit_code?: number | null;
      inputs?: {
        [key: string]: components["schemas"]["TraceContent"];
      };
      last?: number;
      of: number;
      oom_killed?: boolean | null;
      process?: string | null;
      result?: {
        [key: string]: unknown;
      };
      results?: components["schemas"]["TraceContent"] | null;
      signal?: string | null;
      stderr?: components["schemas"]["TraceContent"] | null;
      stdout?: components["schemas"]["TraceContent"] | null;
      timed_out?: boolean;
      usage?: components["schemas"]["Usage"] | null;
    };
    /**
     * TraceError
     * @description The error of a step that failed: `code` as in the API.
     */
    TraceError: {
      code: string;
      message?: string;
    };
    /**
     * TraceStart
     * @description The beginning of a trace. `spec`: the request as it was resolved, without values of secrets. `parent` and
     *     `parent_step`: for a fork, the sandbox that it was copied from, and the last step of that sandbox before it.
     */
    TraceStart: {
      created_at?: number;
      format: number;
      image: string;
      image_digest: string;
      name?: string | null;
      owner: string;
      parent?: string | null;
      parent_step?: number | null;
      sandbox: string;
      spec?: {
        [key: string]: unknown;
      };
    };
    /**
     * TraceStep
     * @description A step. `kind`: as in the audit log, like process.run. `text`: one line about it. `params`: the arguments of the
     *     call, as the HTTP API takes them. `inputs`: contents that came with the call: `stdin`, `code`, `body` (a file or an
     *     archive), `old` and `new`, or `params` if they are long. `process`: the ID of its process. `audit`: its number in
     *     the audit log. `omitted`: steps before this one that were not recorded. `event`: it
     *     happened at once and has no end. `end`: missing while it runs, or if it was not recorded.
     */
    TraceStep: {
      at: number;
      audit?: number | null;
      changes?: components["schemas"]["TraceChanges"] | null;
      end?: components["schemas"]["TraceEnd"] | null;
      event?: boolean;
      inputs?: {
        [key: string]: components["schemas"]["TraceContent"];
      };
      kind: string;
      n: number;
      omitted?: number;
      params?: {
        [key: string]: unknown;
      };
      process?: string | null;
      start?: components["schemas"]["TraceStart"] | null;
      text?: string;
    };
    /**
     * TransferResult
     * @description The result of an upload or download. `links` counts symbolic links; a hard link counts as a file. `skipped` has
     *     the first skipped entries, `more` is the number of the others.
     */
    TransferResult: {
      bytes: number;
      directories: number;
      files: number;
      links: number;
      more: number;
      skipped: components["schemas"]["Skipped"][];
    };
    /**
     * UndeleteRequest
     * @description POST /v1/review/deleted/{ref}. `name`: a new name, for example because another sandbox has the former one.
     */
    UndeleteRequest: {
      name?: string | null;
    };
    /**
     * UpdateRequest
     * @description PATCH /v1/sandboxes/{id}: given fields replace the old ones, in `env`, `limits` and `lifecycle` one by one; in
     *     `env`, null unsets a variable, also one of the image. An empty `budget` removes the sandbox's budget.
     */
    UpdateRequest: {
      budget?: components["schemas"]["Budget"] | null;
      env?: {
        [key: string]: string | null;
      } | null;
      labels?: {
        [key: string]: string;
      } | null;
      lifecycle?: components["schemas"]["Lifecycle"] | null;
      limits?: components["schemas"]["Limits"] | null;
      secrets?: components["schemas"]["SecretValue"][] | null;
    };
    /**
     * Usage
     * @description Resource usage of a command or a sandbox. Only a running sandbox has `memory` (without caches that can be freed)
     *     and `pids`, the current values; only code in a context has `memory_start` and `cpu_peak_percent` (100: one core, in
     *     a tenth of a second). The other fields are as in `UsageTotals`; those of a sandbox count since it was
     *     created. `cost`: by the operator's prices; None: none is set.
     */
    Usage: {
      active_s: number;
      cost: number | null;
      cpu_peak_percent: number | null;
      cpu_s: number;
      currency: string | null;
      disk: number | null;
      disk_byte_s: number;
      memory: number | null;
      memory_byte_s: number;
      memory_peak: number | null;
      memory_start: number | null;
      pids: number | null;
      pids_peak: number | null;
      received: number;
      sent: number;
      wall_s: number;
    };
    /**
     * UsageReport
     * @description Usage by group, the largest first; days in order. `since`, `until`: the first and the last day, in UTC. `more`:
     *     the number of further rows, which `total` includes. `currency`: of all costs; None: no price is set.
     */
    UsageReport: {
      by: string;
      cost: number | null;
      currency: string | null;
      more: number;
      rows: components["schemas"]["UsageRow"][];
      sandboxes: number;
      since: string | null;
      total: components["schemas"]["UsageTotals"];
      until: string | null;
    };
    /**
     * UsageRow
     * @description The usage of one group. `key`: the sandbox's ID, the label's value, the actor, the image, the owner or the day;
     *     None: sandboxes without the label. `name`: of a sandbox, if it had one.
     */
    UsageRow: {
      cost: number | null;
      key: string | null;
      name: string | null;
      sandboxes: number;
      usage: components["schemas"]["UsageTotals"];
    };
    /**
     * UsageTotals
     * @description Resources used so far. `memory_byte_s`, `disk_byte_s`: bytes times seconds. `sent`, `received`: bytes to and from
     *     other hosts. `wall_s`: time in which the sandbox ran, so neither paused nor stopped. `active_s`: the part of it in
     *     which a command, code or a terminal ran.
     */
    UsageTotals: {
      active_s: number;
      cpu_s: number;
      disk_byte_s: number;
      memory_byte_s: number;
      memory_peak: number;
      received: number;
      sent: number;
      wall_s: number;
    };
    /**
     * VerifyRequest
     * @description `name`: an image; default: every stored layer.
     */
    VerifyRequest: {
      name?: string | null;
    };
    /**
     * VerifyResult
     * @description All verified layers.
     */
    VerifyResult: {
      layers: components["schemas"]["LayerState"][];
    };
    /**
     * VolumeInfo
     * @description A volume, or a snapshot of one, which never changes. `used`: bytes that count towards `size`; None: not measured.
     *     `source`: the ID of the volume that it is a copy of. `sandboxes`: those that mount it, by name or ID.
     */
    VolumeInfo: {
      created_at: number;
      id: string;
      /**
       * @default volume
       * @enum {unknown}
       */
      kind: "snapshot" | "volume";
      name: string;
      owner: string;
      sandboxes: string[];
      size: string;
      source: string | null;
      used: number | null;
    };
    /** VolumeList */
    VolumeList: {
      volumes: components["schemas"]["VolumeInfo"][];
    };
    /**
     * VolumeRequest
     * @description POST /v1/volumes. Without `size`, the operator's default applies (volumes.size).
     */
    VolumeRequest: {
      name: string;
      size?: string | number | null;
    };
    /**
     * VolumeSnapshotRequest
     * @description POST /v1/volumes/{volume}/snapshot.
     */
    VolumeSnapshotRequest: {
      name: string;
    };
    /**
     * WebhookDelivery
     * @description An event for a webhook. `body`: the text that is posted. `status`: of the last response, if there was one.
     */
    WebhookDelivery: {
      attempts: number;
      body: string;
      created_at: number;
      error: string | null;
      id: string;
      status: number | null;
      type: string;
      webhook: string;
    };
    /** WebhookDeliveryList */
    WebhookDeliveryList: {
      deliveries: components["schemas"]["WebhookDelivery"][];
    };
    /**
     * WebhookInfo
     * @description A webhook. `url` is shown without its query, which may be secret. `waiting` and `dead`: deliveries in the queue.
     *     `gone`: the receiver answered 410, so nothing is sent to it until `retry`, or a restart of the server. `sent`,
     *     `failed`: attempts since the server started.
     */
    WebhookInfo: {
      dead: number;
      events: string[];
      failed: number;
      gone: boolean;
      last_error: string | null;
      last_sent_at: number | null;
      name: string;
      sent: number;
      url: string;
      waiting: number;
    };
    /** WebhookList */
    WebhookList: {
      webhooks: components["schemas"]["WebhookInfo"][];
    };
    /**
     * WebhookRetry
     * @description The number of dead deliveries that wait again.
     */
    WebhookRetry: {
      retried: number;
    };
    /**
     * WebhookTest
     * @description The result of a test event.
     */
    WebhookTest: {
      error: string | null;
      id: string;
      ok: boolean;
      status: number | null;
    };
  };
  responses: never;
  parameters: never;
  requestBodies: never;
  headers: never;
  pathItems: never;
}
export type $defs = Record<string, never>;
export interface operations {
  host_health: {
    parameters: {
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["Health"];
        };
      };
    };
  };
  mcp_listen: {
    parameters: {
      query?: {
        all?: boolean;
        sandbox?: string[];
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "text/event-stream": string;
        };
      };
    };
  };
  mcp_post: {
    parameters: {
      query?: {
        all?: boolean;
        sandbox?: string[];
      };
    };
    requestBody: {
      content: {
        "application/json": string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": string;
          "text/event-stream": string;
        };
      };
      /** @description Success. */
      202: {
        headers: {
          [name: string]: unknown;
        };
      };
    };
  };
  mcp_end: {
    parameters: {
      query?: {
        all?: boolean;
        sandbox?: string[];
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": string;
        };
      };
    };
  };
  host_metrics: {
    parameters: {
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "text/plain": string;
        };
      };
    };
  };
  host_openapi: {
    parameters: {
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": Record<string, never>;
        };
      };
    };
  };
  host_ready: {
    parameters: {
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["Readiness"];
        };
      };
    };
  };
  audit_list: {
    parameters: {
      query?: {
        actor?: string | null;
        before?: number | null;
        limit?: number;
        owner?: string | null;
        sandbox?: string | null;
        since?: number | null;
        type?: string | null;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["AuditPage"];
        };
      };
    };
  };
  audit_export: {
    parameters: {
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/x-ndjson": string;
          "text/event-stream": string;
        };
      };
    };
  };
  audit_keys: {
    parameters: {
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["AuditKeys"];
        };
      };
    };
  };
  audit_rotate: {
    parameters: {
    };
    responses: {
      /** @description Success. */
      201: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["AuditKeys"];
        };
      };
    };
  };
  audit_verify: {
    parameters: {
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["AuditReport"];
        };
      };
    };
  };
  budgets_list: {
    parameters: {
      query?: {
        sandbox?: string | null;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["BudgetList"];
        };
      };
    };
  };
  budgets_set: {
    parameters: {
    };
    requestBody: {
      content: {
        "application/json": components["schemas"]["BudgetRequest"];
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["BudgetInfo"];
        };
      };
    };
  };
  budgets_remove: {
    parameters: {
      path: {
        budget: string;
      };
    };
    responses: {
      /** @description Success. */
      204: {
        headers: {
          [name: string]: unknown;
        };
      };
    };
  };
  host_doctor: {
    parameters: {
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["Report"];
        };
      };
    };
  };
  events_list: {
    parameters: {
      query?: {
        follow?: boolean;
        sandbox?: string | null;
        since?: number | null;
        type?: string | null;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/x-ndjson": string;
          "text/event-stream": string;
        };
      };
    };
  };
  images_list: {
    parameters: {
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["ImageList"];
        };
      };
    };
  };
  images_create: {
    parameters: {
    };
    requestBody: {
      content: {
        "application/json": components["schemas"]["CreateImage"];
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/x-ndjson": string;
          "text/event-stream": string;
        };
      };
      /** @description Success. */
      201: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["ImageInfo"];
        };
      };
    };
  };
  images_get: {
    parameters: {
      path: {
        name: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["ImageInfo"];
        };
      };
    };
  };
  images_remove: {
    parameters: {
      path: {
        name: string;
      };
    };
    responses: {
      /** @description Success. */
      204: {
        headers: {
          [name: string]: unknown;
        };
      };
    };
  };
  archives_export_image: {
    parameters: {
      query: {
        name: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/vnd.skerry.frames": string;
          "application/x-tar": string;
        };
      };
    };
  };
  archives_import_image: {
    parameters: {
      query: {
        name: string;
        replace?: boolean;
      };
    };
    requestBody: {
      content: {
        "application/x-tar": string;
      };
    };
    responses: {
      /** @description Success. */
      201: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["ImportedImage"];
        };
      };
    };
  };
  images_prune: {
    parameters: {
    };
    requestBody: {
      content: {
        "application/json": components["schemas"]["PruneRequest"];
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["PruneResult"];
        };
      };
    };
  };
  images_pull: {
    parameters: {
    };
    requestBody: {
      content: {
        "application/json": components["schemas"]["PullRequest"];
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/x-ndjson": string;
          "text/event-stream": string;
        };
      };
    };
  };
  images_verify: {
    parameters: {
    };
    requestBody: {
      content: {
        "application/json": components["schemas"]["VerifyRequest"];
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/x-ndjson": string;
          "text/event-stream": string;
        };
      };
    };
  };
  languages_list: {
    parameters: {
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["LanguageList"];
        };
      };
    };
  };
  languages_install: {
    parameters: {
      path: {
        language: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/x-ndjson": string;
          "text/event-stream": string;
        };
      };
    };
  };
  pool_show: {
    parameters: {
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["PoolInfo"];
        };
      };
    };
  };
  pool_set: {
    parameters: {
    };
    requestBody: {
      content: {
        "application/json": components["schemas"]["PoolRequest"];
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["PoolInfo"];
        };
      };
    };
  };
  pool_drain: {
    parameters: {
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["PoolInfo"];
        };
      };
    };
  };
  replays_create: {
    parameters: {
      header?: {
        "Idempotency-Key"?: string;
      };
    };
    requestBody: {
      content: {
        "application/json": components["schemas"]["ReplayRequest"];
      };
    };
    responses: {
      /** @description Success. */
      201: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["SandboxInfo"];
        };
      };
    };
  };
  review_copies: {
    parameters: {
      query?: {
        origin?: string | null;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["RepoCopies"];
        };
      };
    };
  };
  review_deleted: {
    parameters: {
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["DeletedSandboxList"];
        };
      };
    };
  };
  review_undelete: {
    parameters: {
      path: {
        ref: string;
      };
    };
    requestBody: {
      content: {
        "application/json": components["schemas"]["UndeleteRequest"];
      };
    };
    responses: {
      /** @description Success. */
      201: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["SandboxInfo"];
        };
      };
    };
  };
  review_refs: {
    parameters: {
      query?: {
        origin?: string | null;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["ReviewRefsList"];
        };
      };
    };
  };
  sandboxes_list: {
    parameters: {
      query?: {
        label?: string[];
        state?: ("creating" | "failed" | "paused" | "running" | "stopped") | null;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["SandboxList"];
        };
      };
    };
  };
  sandboxes_create: {
    parameters: {
      header?: {
        "Idempotency-Key"?: string;
      };
    };
    requestBody: {
      content: {
        "application/json": components["schemas"]["CreateRequest"];
      };
    };
    responses: {
      /** @description Success. */
      201: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["SandboxInfo"];
        };
      };
    };
  };
  sandboxes_get: {
    parameters: {
      path: {
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["SandboxInfo"];
        };
      };
    };
  };
  sandboxes_delete: {
    parameters: {
      query?: {
        force?: boolean;
        purge?: boolean;
      };
      path: {
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      204: {
        headers: {
          [name: string]: unknown;
        };
      };
    };
  };
  sandboxes_update: {
    parameters: {
      path: {
        ref: string;
      };
    };
    requestBody: {
      content: {
        "application/json": components["schemas"]["UpdateRequest"];
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["SandboxInfo"];
        };
      };
    };
  };
  code_run: {
    parameters: {
      path: {
        ref: string;
      };
    };
    requestBody: {
      content: {
        "application/json": components["schemas"]["CodeRequest"];
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["CodeEnd"];
          "application/vnd.skerry.frames": string;
          "application/x-ndjson": string;
          "text/event-stream": string;
        };
      };
    };
  };
  contexts_list: {
    parameters: {
      path: {
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["ContextList"];
        };
      };
    };
  };
  contexts_create: {
    parameters: {
      path: {
        ref: string;
      };
    };
    requestBody: {
      content: {
        "application/json": components["schemas"]["ContextRequest"];
      };
    };
    responses: {
      /** @description Success. */
      201: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["ContextInfo"];
        };
      };
    };
  };
  contexts_get: {
    parameters: {
      path: {
        context: string;
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["ContextInfo"];
        };
      };
    };
  };
  contexts_remove: {
    parameters: {
      path: {
        context: string;
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      204: {
        headers: {
          [name: string]: unknown;
        };
      };
    };
  };
  contexts_interrupt: {
    parameters: {
      path: {
        context: string;
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["ContextInfo"];
        };
      };
    };
  };
  contexts_restart: {
    parameters: {
      path: {
        context: string;
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["ContextInfo"];
        };
      };
    };
  };
  files_read: {
    parameters: {
      query: {
        path: string;
        user?: string | null;
      };
      header?: {
        Range?: string;
      };
      path: {
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/octet-stream": string;
        };
      };
      /** @description The requested range. */
      206: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/octet-stream": string;
        };
      };
    };
  };
  files_write: {
    parameters: {
      query: {
        append?: boolean;
        mode?: string | null;
        owner?: string | null;
        parents?: boolean;
        path: string;
        user?: string | null;
      };
      path: {
        ref: string;
      };
    };
    requestBody: {
      content: {
        "application/octet-stream": string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["FileInfo"];
        };
      };
    };
  };
  files_remove: {
    parameters: {
      query: {
        path: string;
        recursive?: boolean;
        user?: string | null;
      };
      path: {
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      204: {
        headers: {
          [name: string]: unknown;
        };
      };
    };
  };
  files_checksum: {
    parameters: {
      query: {
        algorithm?: "md5" | "sha1" | "sha256" | "sha512";
        path: string;
        user?: string | null;
      };
      path: {
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["Checksum"];
        };
      };
    };
  };
  files_chmod: {
    parameters: {
      query: {
        mode: string;
        path: string;
        recursive?: boolean;
        user?: string | null;
      };
      path: {
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      204: {
        headers: {
          [name: string]: unknown;
        };
      };
    };
  };
  files_chown: {
    parameters: {
      query: {
        owner: string;
        path: string;
        recursive?: boolean;
        user?: string | null;
      };
      path: {
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      204: {
        headers: {
          [name: string]: unknown;
        };
      };
    };
  };
  files_copy: {
    parameters: {
      query: {
        overwrite?: boolean;
        parents?: boolean;
        path: string;
        recursive?: boolean;
        to: string;
        user?: string | null;
      };
      path: {
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["FileInfo"];
        };
      };
    };
  };
  files_glob: {
    parameters: {
      query: {
        hidden?: boolean;
        limit?: number;
        path?: string;
        pattern: string;
        user?: string | null;
      };
      path: {
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["Entries"];
        };
      };
    };
  };
  files_lines: {
    parameters: {
      query: {
        end?: number | null;
        path: string;
        start?: number;
        user?: string | null;
      };
      path: {
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["FileLines"];
        };
      };
    };
  };
  files_link: {
    parameters: {
      query: {
        hard?: boolean;
        path: string;
        target: string;
        user?: string | null;
      };
      path: {
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["FileInfo"];
        };
      };
    };
  };
  files_list: {
    parameters: {
      query: {
        depth?: number;
        hidden?: boolean;
        path: string;
        user?: string | null;
      };
      path: {
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["Entries"];
        };
      };
    };
  };
  files_mkdir: {
    parameters: {
      query: {
        mode?: string | null;
        parents?: boolean;
        path: string;
        user?: string | null;
      };
      path: {
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["FileInfo"];
        };
      };
    };
  };
  files_move: {
    parameters: {
      query: {
        overwrite?: boolean;
        parents?: boolean;
        path: string;
        to: string;
        user?: string | null;
      };
      path: {
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["FileInfo"];
        };
      };
    };
  };
  files_patch: {
    parameters: {
      query: {
        path: string;
        user?: string | null;
      };
      path: {
        ref: string;
      };
    };
    requestBody: {
      content: {
        "text/x-diff": string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["PatchResult"];
        };
      };
    };
  };
  files_replace: {
    parameters: {
      query: {
        path: string;
        user?: string | null;
      };
      path: {
        ref: string;
      };
    };
    requestBody: {
      content: {
        "application/json": components["schemas"]["ReplaceRequest"];
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["ReplaceResult"];
        };
      };
    };
  };
  files_search: {
    parameters: {
      query: {
        context?: number;
        glob?: string | null;
        hidden?: boolean;
        ignore_case?: boolean;
        limit?: number;
        literal?: boolean;
        path?: string;
        pattern: string;
        user?: string | null;
      };
      path: {
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["SearchResult"];
        };
      };
    };
  };
  files_stat: {
    parameters: {
      query: {
        follow?: boolean;
        path: string;
        user?: string | null;
      };
      path: {
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["FileInfo"];
        };
      };
    };
  };
  files_download: {
    parameters: {
      query: {
        exclude?: string[];
        path: string;
        user?: string | null;
      };
      path: {
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/vnd.skerry.frames": string;
          "application/x-tar": string;
        };
      };
    };
  };
  files_upload: {
    parameters: {
      query: {
        path: string;
        user?: string | null;
      };
      path: {
        ref: string;
      };
    };
    requestBody: {
      content: {
        "application/x-tar": string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["TransferResult"];
        };
      };
    };
  };
  files_watch: {
    parameters: {
      query: {
        exclude?: string[];
        include?: string[];
        path: string;
        recursive?: boolean;
        since?: string | null;
        user?: string | null;
      };
      path: {
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/x-ndjson": string;
          "text/event-stream": string;
        };
      };
    };
  };
  snapshots_fork: {
    parameters: {
      header?: {
        "Idempotency-Key"?: string;
      };
      path: {
        ref: string;
      };
    };
    requestBody: {
      content: {
        "application/json": components["schemas"]["ForkRequest"];
      };
    };
    responses: {
      /** @description Success. */
      201: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["SandboxList"];
        };
      };
    };
  };
  languages_there: {
    parameters: {
      path: {
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["LanguageList"];
        };
      };
    };
  };
  network_show: {
    parameters: {
      path: {
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["NetworkInfo"];
        };
      };
    };
  };
  network_set: {
    parameters: {
      path: {
        ref: string;
      };
    };
    requestBody: {
      content: {
        "application/json": components["schemas"]["Network"];
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["NetworkInfo"];
        };
      };
    };
  };
  network_change: {
    parameters: {
      path: {
        ref: string;
      };
    };
    requestBody: {
      content: {
        "application/json": components["schemas"]["NetworkChange"];
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["NetworkInfo"];
        };
      };
    };
  };
  network_approvals: {
    parameters: {
      path: {
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/x-ndjson": string;
          "text/event-stream": string;
        };
      };
    };
  };
  network_answer_approval: {
    parameters: {
      path: {
        approval: string;
        ref: string;
      };
    };
    requestBody: {
      content: {
        "application/json": components["schemas"]["Approval"];
      };
    };
    responses: {
      /** @description Success. */
      204: {
        headers: {
          [name: string]: unknown;
        };
      };
    };
  };
  network_cassette: {
    parameters: {
      path: {
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["CassetteInfo"];
          "application/octet-stream": string;
        };
      };
    };
  };
  network_load_cassette: {
    parameters: {
      path: {
        ref: string;
      };
    };
    requestBody: {
      content: {
        "application/octet-stream": string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["CassetteInfo"];
        };
      };
    };
  };
  network_handler_calls: {
    parameters: {
      query: {
        client?: string;
        host: string;
      };
      path: {
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/x-ndjson": string;
          "text/event-stream": string;
        };
      };
    };
  };
  network_decide_call: {
    parameters: {
      path: {
        call: string;
        ref: string;
      };
    };
    requestBody: {
      content: {
        "application/json": components["schemas"]["HandlerDecision"];
      };
    };
    responses: {
      /** @description Success. */
      204: {
        headers: {
          [name: string]: unknown;
        };
      };
    };
  };
  network_log: {
    parameters: {
      query?: {
        denied?: boolean;
        follow?: boolean;
        limit?: number | null;
        since?: number;
      };
      path: {
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/x-ndjson": string;
          "text/event-stream": string;
        };
      };
    };
  };
  network_suggested_policy: {
    parameters: {
      path: {
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["Network"];
        };
      };
    };
  };
  sandboxes_pause: {
    parameters: {
      path: {
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["SandboxInfo"];
        };
      };
    };
  };
  ports_connect: {
    parameters: {
      path: {
        port: string;
        ref: string;
      };
    };
    responses: {
      /** @description Switched to a WebSocket. */
      101: {
        headers: {
          [name: string]: unknown;
        };
      };
    };
  };
  ports_wait: {
    parameters: {
      query?: {
        http_path?: string | null;
        process?: string | null;
        timeout?: number;
      };
      path: {
        port: string;
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["PortState"];
        };
      };
    };
  };
  previews_list: {
    parameters: {
      path: {
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["PreviewList"];
        };
      };
    };
  };
  previews_create: {
    parameters: {
      path: {
        ref: string;
      };
    };
    requestBody: {
      content: {
        "application/json": components["schemas"]["PreviewRequest"];
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["PreviewInfo"];
        };
      };
    };
  };
  previews_remove: {
    parameters: {
      path: {
        port: string;
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      204: {
        headers: {
          [name: string]: unknown;
        };
      };
    };
  };
  processes_list: {
    parameters: {
      path: {
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["ProcessList"];
        };
      };
    };
  };
  processes_run: {
    parameters: {
      query?: {
        wait?: boolean;
      };
      path: {
        ref: string;
      };
    };
    requestBody: {
      content: {
        "application/json": components["schemas"]["RunRequest"];
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["RunResult"];
          "application/vnd.skerry.frames": string;
          "application/x-ndjson": string;
          "text/event-stream": string;
        };
      };
      /** @description Success. */
      201: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["ProcessInfo"];
        };
      };
    };
  };
  processes_get: {
    parameters: {
      path: {
        process: string;
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["ProcessInfo"];
        };
      };
    };
  };
  processes_remove: {
    parameters: {
      path: {
        process: string;
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      204: {
        headers: {
          [name: string]: unknown;
        };
      };
    };
  };
  processes_output: {
    parameters: {
      query?: {
        follow?: boolean;
        limit?: number | null;
        since?: number;
        timeout?: number | null;
      };
      path: {
        process: string;
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["OutputPage"];
          "application/vnd.skerry.frames": string;
          "application/x-ndjson": string;
          "text/event-stream": string;
        };
      };
    };
  };
  processes_resize: {
    parameters: {
      path: {
        process: string;
        ref: string;
      };
    };
    requestBody: {
      content: {
        "application/json": components["schemas"]["ResizeRequest"];
      };
    };
    responses: {
      /** @description Success. */
      204: {
        headers: {
          [name: string]: unknown;
        };
      };
    };
  };
  processes_signal: {
    parameters: {
      path: {
        process: string;
        ref: string;
      };
    };
    requestBody: {
      content: {
        "application/json": components["schemas"]["SignalRequest"];
      };
    };
    responses: {
      /** @description Success. */
      204: {
        headers: {
          [name: string]: unknown;
        };
      };
    };
  };
  processes_stdin: {
    parameters: {
      query?: {
        close?: boolean;
      };
      path: {
        process: string;
        ref: string;
      };
    };
    requestBody: {
      content: {
        "application/octet-stream": string;
      };
    };
    responses: {
      /** @description Success. */
      204: {
        headers: {
          [name: string]: unknown;
        };
      };
    };
  };
  terminals_attach: {
    parameters: {
      query?: {
        replay?: number;
        since?: number | null;
      };
      path: {
        process: string;
        ref: string;
      };
    };
    responses: {
      /** @description Switched to a WebSocket. */
      101: {
        headers: {
          [name: string]: unknown;
        };
      };
    };
  };
  processes_tool_calls: {
    parameters: {
      path: {
        process: string;
        ref: string;
      };
    };
    requestBody: {
      content: {
        "application/json": components["schemas"]["ReportedCalls"];
      };
    };
    responses: {
      /** @description Success. */
      204: {
        headers: {
          [name: string]: unknown;
        };
      };
    };
  };
  processes_wait: {
    parameters: {
      query?: {
        timeout?: number;
      };
      path: {
        process: string;
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["RunResult"];
        };
      };
      /** @description Success. */
      204: {
        headers: {
          [name: string]: unknown;
        };
      };
    };
  };
  sandboxes_rename: {
    parameters: {
      path: {
        ref: string;
      };
    };
    requestBody: {
      content: {
        "application/json": components["schemas"]["RenameRequest"];
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["SandboxInfo"];
        };
      };
    };
  };
  snapshots_restore: {
    parameters: {
      query: {
        path?: string;
        snapshot: string;
        user?: string | null;
      };
      path: {
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["TransferResult"];
        };
      };
    };
  };
  sandboxes_resume: {
    parameters: {
      path: {
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["SandboxInfo"];
        };
      };
    };
  };
  review_show: {
    parameters: {
      query?: {
        exclude?: string[];
        paths?: string[];
        state?: ("accepted" | "applied" | "open" | "rejected") | null;
      };
      path: {
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["Review"];
        };
      };
    };
  };
  review_begin: {
    parameters: {
      path: {
        ref: string;
      };
    };
    requestBody: {
      content: {
        "application/json": components["schemas"]["BeginReview"];
      };
    };
    responses: {
      /** @description Success. */
      201: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["Review"];
        };
      };
    };
  };
  review_record_apply: {
    parameters: {
      path: {
        ref: string;
      };
    };
    requestBody: {
      content: {
        "application/json": components["schemas"]["AppliedRequest"];
      };
    };
    responses: {
      /** @description Success. */
      204: {
        headers: {
          [name: string]: unknown;
        };
      };
    };
  };
  review_record_undo: {
    parameters: {
      path: {
        apply: string;
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      204: {
        headers: {
          [name: string]: unknown;
        };
      };
    };
  };
  review_blob: {
    parameters: {
      path: {
        oid: string;
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/octet-stream": string;
        };
      };
    };
  };
  review_decide: {
    parameters: {
      path: {
        ref: string;
      };
    };
    requestBody: {
      content: {
        "application/json": components["schemas"]["Decisions"];
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["DecisionResult"];
        };
      };
    };
  };
  review_diff: {
    parameters: {
      query?: {
        paths?: string[];
        stat?: boolean;
      };
      path: {
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["DiffStat"];
          "text/x-diff": string;
        };
      };
    };
  };
  review_pack: {
    parameters: {
      path: {
        ref: string;
      };
    };
    requestBody: {
      content: {
        "application/json": components["schemas"]["PackRequest"];
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/x-git-pack": string;
        };
      };
    };
  };
  review_history: {
    parameters: {
      query?: {
        limit?: number;
        patch?: boolean;
        paths?: string[];
        since?: string | null;
      };
      path: {
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["History"];
        };
      };
    };
  };
  review_hunk: {
    parameters: {
      path: {
        hunk: string;
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["Hunk"];
        };
      };
    };
  };
  review_origin: {
    parameters: {
      path: {
        hunk: string;
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["HunkOrigin"];
        };
      };
    };
  };
  review_patch_set: {
    parameters: {
      query?: {
        exclude?: string[];
        open?: boolean;
        paths?: string[];
      };
      path: {
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["PatchSet"];
        };
      };
    };
  };
  review_pull: {
    parameters: {
      path: {
        ref: string;
      };
    };
    requestBody: {
      content: {
        "application/octet-stream": string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["PullResult"];
        };
      };
    };
  };
  review_tree: {
    parameters: {
      query?: {
        paths?: string[];
      };
      path: {
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/x-ndjson": string;
          "text/event-stream": string;
        };
      };
    };
  };
  review_watch: {
    parameters: {
      query?: {
        since?: string | null;
      };
      path: {
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/x-ndjson": string;
          "text/event-stream": string;
        };
      };
    };
  };
  snapshots_rollback: {
    parameters: {
      path: {
        ref: string;
      };
    };
    requestBody: {
      content: {
        "application/json": components["schemas"]["RollbackRequest"];
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["SandboxInfo"];
        };
      };
    };
  };
  sessions_list: {
    parameters: {
      path: {
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["SessionList"];
        };
      };
    };
  };
  sessions_open: {
    parameters: {
      path: {
        ref: string;
      };
    };
    requestBody: {
      content: {
        "application/json": components["schemas"]["SessionRequest"];
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["SessionInfo"];
        };
      };
    };
  };
  sessions_get: {
    parameters: {
      path: {
        ref: string;
        session: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["SessionInfo"];
        };
      };
    };
  };
  sessions_remove: {
    parameters: {
      path: {
        ref: string;
        session: string;
      };
    };
    responses: {
      /** @description Success. */
      204: {
        headers: {
          [name: string]: unknown;
        };
      };
    };
  };
  snapshots_of_one: {
    parameters: {
      path: {
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["SnapshotList"];
        };
      };
    };
  };
  snapshots_take: {
    parameters: {
      header?: {
        "Idempotency-Key"?: string;
      };
      path: {
        ref: string;
      };
    };
    requestBody: {
      content: {
        "application/json": components["schemas"]["SnapshotRequest"];
      };
    };
    responses: {
      /** @description Success. */
      201: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["SnapshotInfo"];
        };
      };
    };
  };
  sandboxes_stop: {
    parameters: {
      path: {
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["SandboxInfo"];
        };
      };
    };
  };
  terminals_ticket: {
    parameters: {
      path: {
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      201: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["TerminalTicket"];
        };
      };
    };
  };
  trace_show: {
    parameters: {
      query?: {
        follow?: boolean;
      };
      path: {
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/x-ndjson": string;
          "text/event-stream": string;
        };
      };
    };
  };
  trace_blob: {
    parameters: {
      path: {
        ref: string;
        sha256: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/octet-stream": string;
        };
      };
    };
  };
  trace_export: {
    parameters: {
      path: {
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/x-tar": string;
        };
      };
    };
  };
  sandboxes_usage: {
    parameters: {
      path: {
        ref: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["Usage"];
        };
      };
    };
  };
  host_info: {
    parameters: {
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["ServerInfo"];
        };
      };
    };
  };
  host_stop: {
    parameters: {
    };
    responses: {
      /** @description Success. */
      202: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["Health"];
        };
      };
    };
  };
  snapshots_list: {
    parameters: {
      query?: {
        key?: string | null;
        kind?: ("auto" | "build" | "kept") | null;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["SnapshotList"];
        };
      };
    };
  };
  snapshots_get: {
    parameters: {
      path: {
        snapshot: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["SnapshotInfo"];
        };
      };
    };
  };
  snapshots_remove: {
    parameters: {
      path: {
        snapshot: string;
      };
    };
    responses: {
      /** @description Success. */
      204: {
        headers: {
          [name: string]: unknown;
        };
      };
    };
  };
  snapshots_changes: {
    parameters: {
      query?: {
        limit?: number;
        to?: string | null;
      };
      path: {
        snapshot: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["SnapshotDiff"];
        };
      };
    };
  };
  archives_export_snapshot: {
    parameters: {
      path: {
        snapshot: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/vnd.skerry.frames": string;
          "application/x-tar": string;
        };
      };
    };
  };
  archives_import_snapshot: {
    parameters: {
      query?: {
        name?: string | null;
      };
    };
    requestBody: {
      content: {
        "application/x-tar": string;
      };
    };
    responses: {
      /** @description Success. */
      201: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["ImportedSnapshot"];
        };
      };
    };
  };
  sandboxes_stats: {
    parameters: {
      query?: {
        sandbox?: string[];
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["SandboxStatsList"];
        };
      };
    };
  };
  tokens_list: {
    parameters: {
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["TokenList"];
        };
      };
    };
  };
  tokens_create: {
    parameters: {
    };
    requestBody: {
      content: {
        "application/json": components["schemas"]["TokenRequest"];
      };
    };
    responses: {
      /** @description Success. */
      201: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["TokenInfo"];
        };
      };
    };
  };
  tokens_remove: {
    parameters: {
      path: {
        token: string;
      };
    };
    responses: {
      /** @description Success. */
      204: {
        headers: {
          [name: string]: unknown;
        };
      };
    };
  };
  usage_report: {
    parameters: {
      query?: {
        by?: string;
        label?: string | null;
        owner?: string | null;
        sandbox?: string | null;
        since?: string | null;
        until?: string | null;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["UsageReport"];
        };
      };
    };
  };
  volumes_list: {
    parameters: {
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["VolumeList"];
        };
      };
    };
  };
  volumes_create: {
    parameters: {
    };
    requestBody: {
      content: {
        "application/json": components["schemas"]["VolumeRequest"];
      };
    };
    responses: {
      /** @description Success. */
      201: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["VolumeInfo"];
        };
      };
    };
  };
  volumes_get: {
    parameters: {
      path: {
        volume: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["VolumeInfo"];
        };
      };
    };
  };
  volumes_remove: {
    parameters: {
      path: {
        volume: string;
      };
    };
    responses: {
      /** @description Success. */
      204: {
        headers: {
          [name: string]: unknown;
        };
      };
    };
  };
  volumes_clone: {
    parameters: {
      path: {
        volume: string;
      };
    };
    requestBody: {
      content: {
        "application/json": components["schemas"]["VolumeRequest"];
      };
    };
    responses: {
      /** @description Success. */
      201: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["VolumeInfo"];
        };
      };
    };
  };
  volumes_export: {
    parameters: {
      path: {
        volume: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/vnd.skerry.frames": string;
          "application/x-tar": string;
        };
      };
    };
  };
  volumes_snapshot: {
    parameters: {
      path: {
        volume: string;
      };
    };
    requestBody: {
      content: {
        "application/json": components["schemas"]["VolumeSnapshotRequest"];
      };
    };
    responses: {
      /** @description Success. */
      201: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["VolumeInfo"];
        };
      };
    };
  };
  volumes_import: {
    parameters: {
      query: {
        name: string;
        size?: string | null;
      };
    };
    requestBody: {
      content: {
        "application/x-tar": string;
      };
    };
    responses: {
      /** @description Success. */
      201: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["ImportedVolume"];
        };
      };
    };
  };
  webhooks_list: {
    parameters: {
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["WebhookList"];
        };
      };
    };
  };
  webhooks_retry: {
    parameters: {
      path: {
        webhook: string;
      };
    };
    requestBody: {
      content: {
        "application/json": components["schemas"]["RetryRequest"];
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["WebhookRetry"];
        };
      };
    };
  };
  webhooks_test: {
    parameters: {
      path: {
        webhook: string;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["WebhookTest"];
        };
      };
    };
  };
  webhooks_dead: {
    parameters: {
      query?: {
        limit?: number;
        webhook?: string | null;
      };
    };
    responses: {
      /** @description Success. */
      200: {
        headers: {
          [name: string]: unknown;
        };
        content: {
          "application/json": components["schemas"]["WebhookDeliveryList"];
        };
      };
    };
  };
}
