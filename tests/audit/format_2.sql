-- A log of format 2 with the key 'a key', dumped from SQLite: three calls were begun and ended, a fourth
-- was begun. Made by the code that brought the format.
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
INSERT INTO "audit_entries" VALUES(0,1795391319.67663,'','','','','','genesis','','{"first":0,"format":2,"hash":"","log":"3e9b8378f0f04ffd8c1a69dd43beb6e3","status":"genesis","through":-1}','0000000000000000000000000000000000000000000000000000000000000000','bef051788df5b45b0800dd9769a4489e48ad29034cc0581aed420fb55442a542');
INSERT INTO "audit_entries" VALUES(1,1.79539131967950201041e+09,'run_1','call_0','run_1/0','search','anna','started','','{"arguments":{"limit":0,"query":"tea"},"caller":"anna","decision":{"policy":"standard","reason":"harmless","type":"allow"},"id":"call_0","idempotency_key":"run_1/0","key_scope":"store","name":"search","run_id":"run_1","started_at":1764000000.25,"status":"started"}','bef051788df5b45b0800dd9769a4489e48ad29034cc0581aed420fb55442a542','5f03cb001b9aec8fa000ffb09ebd7989f7e2bf6eefb67167466b529752a3dfc7');
INSERT INTO "audit_entries" VALUES(2,1.79539131968282890316e+09,'run_1','call_0','run_1/0','search','anna','completed','','{"arguments":{"limit":0,"query":"tea"},"caller":"anna","decision":{"policy":"standard","reason":"harmless","type":"allow"},"id":"call_0","idempotency_key":"run_1/0","key_scope":"store","name":"search","result":{"found":0,"price":1.5},"run_id":"run_1","seconds":0.25,"started_at":1764000000.25,"status":"completed"}','5f03cb001b9aec8fa000ffb09ebd7989f7e2bf6eefb67167466b529752a3dfc7','95ec7f026e6ed1499e383cb3ac4dbf8c24449ed62c4a25a2a2171943a47aa522');
INSERT INTO "audit_entries" VALUES(3,1.79539131968703389165e+09,'run_1','call_1','run_1/1','search','anna','started','','{"arguments":{"limit":1,"query":"tea"},"caller":"anna","decision":{"policy":"standard","reason":"harmless","type":"allow"},"id":"call_1","idempotency_key":"run_1/1","key_scope":"store","name":"search","run_id":"run_1","started_at":1764000000.25,"status":"started"}','95ec7f026e6ed1499e383cb3ac4dbf8c24449ed62c4a25a2a2171943a47aa522','16b5ab468bb7ceb08613e33003a5ccf4559a9054084ed672bbc90b8076b5aef3');
INSERT INTO "audit_entries" VALUES(4,1.79539131968990588184e+09,'run_1','call_1','run_1/1','search','anna','completed','','{"arguments":{"limit":1,"query":"tea"},"caller":"anna","decision":{"policy":"standard","reason":"harmless","type":"allow"},"id":"call_1","idempotency_key":"run_1/1","key_scope":"store","name":"search","result":{"found":1,"price":1.5},"run_id":"run_1","seconds":0.25,"started_at":1764000000.25,"status":"completed"}','16b5ab468bb7ceb08613e33003a5ccf4559a9054084ed672bbc90b8076b5aef3','31bae36f3c014264c9f40f24ec3eeaaaec7d8c0b93236bb25892752a9b290513');
INSERT INTO "audit_entries" VALUES(5,1.79539131969153308867e+09,'run_1','call_2','run_1/2','search','anna','started','','{"arguments":{"limit":2,"query":"tea"},"caller":"anna","decision":{"policy":"standard","reason":"harmless","type":"allow"},"id":"call_2","idempotency_key":"run_1/2","key_scope":"store","name":"search","run_id":"run_1","started_at":1764000000.25,"status":"started"}','31bae36f3c014264c9f40f24ec3eeaaaec7d8c0b93236bb25892752a9b290513','c2cacf2982ae083cfd03e8d7cb45788d9cbaef1330ba68383af48f6b00f11530');
INSERT INTO "audit_entries" VALUES(6,1.79539131969450497629e+09,'run_1','call_2','run_1/2','search','anna','completed','','{"arguments":{"limit":2,"query":"tea"},"caller":"anna","decision":{"policy":"standard","reason":"harmless","type":"allow"},"id":"call_2","idempotency_key":"run_1/2","key_scope":"store","name":"search","result":{"found":2,"price":1.5},"run_id":"run_1","seconds":0.25,"started_at":1764000000.25,"status":"completed"}','c2cacf2982ae083cfd03e8d7cb45788d9cbaef1330ba68383af48f6b00f11530','c08d19e60d4a3f976691726fa6137fbb7e1bca25dc60423d53cef3131044948e');
INSERT INTO "audit_entries" VALUES(7,1.79539131970162892343e+09,'run_1','call_3','run_1/3','search','anna','started','','{"arguments":{"limit":3,"query":"tea"},"caller":"anna","decision":{"policy":"standard","reason":"harmless","type":"allow"},"id":"call_3","idempotency_key":"run_1/3","key_scope":"store","name":"search","run_id":"run_1","started_at":1764000000.25,"status":"started"}','c08d19e60d4a3f976691726fa6137fbb7e1bca25dc60423d53cef3131044948e','b8ada4a9c71667e83b525157a23f187f592647463d635b3d02d614959e93365f');
CREATE TABLE audit_head (
            id INTEGER PRIMARY KEY,
            seq INTEGER NOT NULL,
            hash TEXT NOT NULL,
            seal TEXT NOT NULL
        , format INTEGER NOT NULL DEFAULT 1, log_id TEXT NOT NULL DEFAULT '', first_seq INTEGER NOT NULL DEFAULT 1, keys_hash TEXT NOT NULL DEFAULT '', tree_hash TEXT NOT NULL DEFAULT '');
INSERT INTO "audit_head" VALUES(1,7,'b8ada4a9c71667e83b525157a23f187f592647463d635b3d02d614959e93365f','caf58800e5e9d59da3cf850a77ee41e49d14ba423204571e9142e75a0f730955',2,'3e9b8378f0f04ffd8c1a69dd43beb6e3',0,'a6dc76356bd66b60f55754a2e742004d','409aabc7e40e0cb402565860f6fd250be14475881e0c471488813ef088b994ec');
CREATE TABLE audit_keys (prefix TEXT PRIMARY KEY, content TEXT NOT NULL);
INSERT INTO "audit_keys" VALUES('','{"3c666664d7e4948057bf77ef1ca18e6c7a3bddde95d89582736cdbb6620d5bb9":[13,19],"6dc4f8d54d457c7f52d91484d4e4939d2f6bd0e241cb4dd064c4161d7b384fa8":[29],"7f99a8e5d4b8f5d1e1e278415756866b5dbb6ce5e026809029e1c93a933281a0":[5,11],"833c8d4afa130ccc34bc418fd2d81a4e20fa85168f1327141959203b14f4f90d":[21,27]}');
CREATE TABLE audit_tiles (place TEXT PRIMARY KEY, hashes TEXT NOT NULL);
INSERT INTO "audit_tiles" VALUES('0/0','8CbmJYvitkJ7+A1rFinC5QBrNDzMrYNlK++zh6VQLNoSjolpGASQOFSLJdKBZNAgujaVzRlLoEyX7q9o5UprkC8ckgUJrQSf4YRex6vLUh/Wv3fFrahI4tV/xiQsGeVqe971bN7Igy42KoXWRmy1uKuaRVwy+uj0gderDzIiVuguuKWSHE28VGpH5f+1iSXXZ735VpTO/BONSVcCgeSrsLF6hm1zShRA6ELhZU5nz8L2VyVgaDgx+wZ6lRv1Dp9RoyhOcM/uHbrygoqDUYS1VT1EIgFg4mXwUzPP+e8yb33PYGXOSKiTLVb1LTdY7/zstcuH8KvnQPfUm5AKoddwag==');
CREATE TABLE toolcrib_schema (version INTEGER PRIMARY KEY);
INSERT INTO "toolcrib_schema" VALUES(1);
INSERT INTO "toolcrib_schema" VALUES(2);
INSERT INTO "toolcrib_schema" VALUES(3);
CREATE UNIQUE INDEX approvals_by_call ON approvals (run_id, call_id)
            WHERE call_id <> '';
CREATE INDEX audit_entries_by_run ON audit_entries (run_id, call_id);
CREATE INDEX audit_entries_by_call ON audit_entries (call_id);
CREATE INDEX audit_entries_by_key ON audit_entries (idempotency_key);
COMMIT;
