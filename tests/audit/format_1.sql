-- A log with the key 'a key', dumped from SQLite, as it was before logs had a format: three calls
-- were begun, two of them ended, a fourth failed. Made by the code of that time (commit 72d0b28).
BEGIN TRANSACTION;
CREATE TABLE approvals (
            id VARCHAR(64) PRIMARY KEY,
            request TEXT NOT NULL,
            expires_at DOUBLE PRECISION NOT NULL,
            answer TEXT,
            used_at DOUBLE PRECISION
        , run_id TEXT NOT NULL DEFAULT '', call_id TEXT NOT NULL DEFAULT '');
CREATE TABLE audit_entries (
            seq INTEGER PRIMARY KEY,
            at DOUBLE PRECISION NOT NULL,
            run_id TEXT NOT NULL,
            call_id TEXT NOT NULL,
            idempotency_key TEXT NOT NULL,
            tool TEXT NOT NULL,
            caller TEXT NOT NULL,
            status TEXT NOT NULL,
            code TEXT NOT NULL,
            record TEXT NOT NULL,
            previous TEXT NOT NULL,
            hash TEXT NOT NULL
        );
INSERT INTO "audit_entries" VALUES(1,1.79538159359438204759e+09,'run_1','call_0','run_1/0','search','anna','started','','{"arguments":{"limit":0,"query":"tea"},"caller":"anna","decision":{"policy":"standard","reason":"harmless","type":"allow"},"id":"call_0","idempotency_key":"run_1/0","key_scope":"store","name":"search","run_id":"run_1","started_at":1764000000.25,"status":"started"}','0000000000000000000000000000000000000000000000000000000000000000','a2c30a15d437c73399fc15d1ebd4ba69d34c3f0bb4da4a762608de77d4b0e697');
INSERT INTO "audit_entries" VALUES(2,1.79538159359574699394e+09,'run_1','call_0','run_1/0','search','anna','completed','','{"arguments":{"limit":0,"query":"tea"},"caller":"anna","decision":{"policy":"standard","reason":"harmless","type":"allow"},"id":"call_0","idempotency_key":"run_1/0","key_scope":"store","name":"search","result":{"found":0,"price":1.5},"run_id":"run_1","seconds":0.25,"started_at":1764000000.25,"status":"completed"}','a2c30a15d437c73399fc15d1ebd4ba69d34c3f0bb4da4a762608de77d4b0e697','7bcb15df60901babce0b13a3324b3852f7e019bc39c76fb95a0105881ea50cc1');
INSERT INTO "audit_entries" VALUES(3,1795381593.60169,'run_1','call_1','run_1/1','search','anna','started','','{"arguments":{"limit":1,"query":"tea"},"caller":"anna","decision":{"policy":"standard","reason":"harmless","type":"allow"},"id":"call_1","idempotency_key":"run_1/1","key_scope":"store","name":"search","run_id":"run_1","started_at":1764000000.25,"status":"started"}','7bcb15df60901babce0b13a3324b3852f7e019bc39c76fb95a0105881ea50cc1','b24f18e7233f4a99c9a0daff5e10b663f4ffccffdf5f746087f6c615c3111ac8');
INSERT INTO "audit_entries" VALUES(4,1.79538159360291600229e+09,'run_1','call_1','run_1/1','search','anna','completed','','{"arguments":{"limit":1,"query":"tea"},"caller":"anna","decision":{"policy":"standard","reason":"harmless","type":"allow"},"id":"call_1","idempotency_key":"run_1/1","key_scope":"store","name":"search","result":{"found":1,"price":1.5},"run_id":"run_1","seconds":0.25,"started_at":1764000000.25,"status":"completed"}','b24f18e7233f4a99c9a0daff5e10b663f4ffccffdf5f746087f6c615c3111ac8','69717e54ec5348f3daba0d0a3466c27dc183784fa761681092f5b71a07b7d6bd');
INSERT INTO "audit_entries" VALUES(5,1.79538159360888695714e+09,'run_1','call_2','run_1/2','search','anna','started','','{"arguments":{"limit":2,"query":"tea"},"caller":"anna","decision":{"policy":"standard","reason":"harmless","type":"allow"},"id":"call_2","idempotency_key":"run_1/2","key_scope":"store","name":"search","run_id":"run_1","started_at":1764000000.25,"status":"started"}','69717e54ec5348f3daba0d0a3466c27dc183784fa761681092f5b71a07b7d6bd','88908e68a3a1cebc9d8f3d173e4f107d4c4acf0d4935375ade5a5592198fcab1');
INSERT INTO "audit_entries" VALUES(6,1.79538159361362195014e+09,'run_1','call_3','run_1/3','search','anna','failed','tool_error','{"arguments":{"limit":3,"query":"tea"},"caller":"anna","decision":{"policy":"standard","reason":"harmless","type":"allow"},"error":{"code":"tool_error","details":[],"message":"The tool failed.","retryable":true,"stage":"run"},"id":"call_3","idempotency_key":"run_1/3","key_scope":"store","name":"search","run_id":"run_1","started_at":1764000000.25,"status":"failed"}','88908e68a3a1cebc9d8f3d173e4f107d4c4acf0d4935375ade5a5592198fcab1','d5e5f883be89f058ba1831850002574e3e9c6724155e09343c2fc452e56736b9');
CREATE TABLE audit_head (
            id INTEGER PRIMARY KEY,
            seq INTEGER NOT NULL,
            hash TEXT NOT NULL,
            seal TEXT NOT NULL
        );
INSERT INTO "audit_head" VALUES(1,6,'d5e5f883be89f058ba1831850002574e3e9c6724155e09343c2fc452e56736b9','8c0c89fb6adb0dd385b0e302b97ba0776569e68ea7d8002b19a84067a2a982b1');
CREATE TABLE toolcrib_schema (version INTEGER PRIMARY KEY);
INSERT INTO "toolcrib_schema" VALUES(1);
INSERT INTO "toolcrib_schema" VALUES(2);
CREATE UNIQUE INDEX approvals_by_call ON approvals (run_id, call_id)
            WHERE call_id <> '';
CREATE INDEX audit_entries_by_run ON audit_entries (run_id, call_id);
CREATE INDEX audit_entries_by_call ON audit_entries (call_id);
CREATE INDEX audit_entries_by_key ON audit_entries (idempotency_key);
COMMIT;
