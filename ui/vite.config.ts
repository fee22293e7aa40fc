import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

const server = process.env["WEFT_SERVER"] ?? "http://127.0.0.1:8470";
const token = process.env["WEFT_TOKEN"];

export default defineConfig({
  plugins: [react()],
  build: {
    outDir: process.env["WEFT_PAGE_DIR"] ?? "../src/weft/server/page",
    emptyOutDir: true,
    assetsInlineLimit: 0, // the Content-Security-Policy allows nothing inline
  },
  server: {
    host: "127.0.0.1",
    proxy: {
      "/v1": {
        target: server,
        changeOrigin: true,
        headers: token ? { Authorization: `Bearer ${token}` } : {},
      },
      "/openapi.json": { target: server, changeOrigin: true },
    },
  },
});
