// Generated from the server's OpenAPI document by scripts/generate.mjs. Do not edit.

export const MAP_FIELDS: ReadonlySet<string> = new Set(["add_headers","agent","data","details","edit","env","files","headers","inputs","labels","output","params","peers","properties","refused","response_add_headers","response_set_headers","result","seen","set_headers","spec","versions","volumes"]);
