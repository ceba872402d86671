import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

// The built page is committed: users of the Python package need no Node.js. Names without digests keep
// the differences of two builds readable; the server answers with an ETag.
export default defineConfig({
  base: "./",
  plugins: [react()],
  build: {
    outDir: "../src/toolcrib/chat/built",
    emptyOutDir: true,
    assetsInlineLimit: 0,
    modulePreload: false,
    chunkSizeWarningLimit: 2000,
    rollupOptions: {
      output: {
        entryFileNames: "page.js",
        chunkFileNames: "[name].js",
        assetFileNames: "[name][extname]",
        codeSplitting: false,
      },
    },
  },
  server: { proxy: { "/threads": "http://127.0.0.1:8017" } },
});
