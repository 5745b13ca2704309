"use strict";
// Render /openapi.json: one collapsible section per endpoint, with the fields of its request and response.

function element(tag, text, className) {
  const node = document.createElement(tag);
  if (text) node.textContent = text;
  if (className) node.className = className;
  return node;
}

// Words between backticks are code.
function rich(tag, text) {
  const node = element(tag);
  (text || "").split("`").forEach((part, index) => node.append(index % 2 ? element("code", part) : part));
  return node;
}

function nameOf(ref) {
  return ref.split("/").pop();
}

function typeOf(schema) {
  if (schema.$ref) return nameOf(schema.$ref);
  if (schema.anyOf) return schema.anyOf.map(typeOf).join(" or ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" or ");
  if (schema.type === "array") return "list of " + typeOf(schema.items);
  if (schema.type === "object" && schema.additionalProperties) return "object of " + typeOf(schema.additionalProperties);
  return schema.type || "any";
}

function boundsOf(schema) {
  const parts = schema.anyOf || [schema];
  const names = { minimum: "≥ ", exclusiveMinimum: "> ", maximum: "≤ ", minItems: "length ≥ ", maxItems: "length ≤ " };
  const bounds = parts.flatMap((part) => Object.keys(names).filter((key) => key in part).map((key) => names[key] + part[key]));
  return bounds.length ? " (" + bounds.join(", ") + ")" : "";
}

function referencesOf(schema) {
  if (schema.$ref) return [nameOf(schema.$ref)];
  return [...(schema.anyOf || []), schema.items, schema.additionalProperties].filter(Boolean).flatMap(referencesOf);
}

function fieldTable(schema) {
  const table = element("table");
  const head = element("tr");
  ["field", "type", "default", ""].forEach((title) => head.append(element("th", title)));
  table.append(head);
  for (const [name, field] of Object.entries(schema.properties || {})) {
    const row = element("tr");
    const cell = element("td");
    cell.append(element("code", name));
    const isRequired = (schema.required || []).includes(name);
    const standard = field.default === "" ? "" : "default" in field ? JSON.stringify(field.default) : isRequired ? "required" : "";
    row.append(cell, element("td", typeOf(field) + boundsOf(field), "type"), element("td", standard), rich("td", field.description));
    table.append(row);
  }
  const scroll = element("div", "", "scroll");
  scroll.append(table);
  return scroll;
}

function describe(title, ref, schemas) {
  const parts = [];
  const queue = [nameOf(ref)];
  const seen = new Set(queue);
  while (queue.length) {
    const name = queue.shift();
    parts.push(element("h4", parts.length ? name : title + ": " + name), rich("p", schemas[name].description), fieldTable(schemas[name]));
    Object.values(schemas[name].properties || {}).flatMap(referencesOf).forEach((inner) => {
      if (!seen.has(inner)) { seen.add(inner); queue.push(inner); }
    });
  }
  return parts;
}

function section(path, method, operation, schemas) {
  const details = element("details");
  const summary = element("summary");
  summary.append(element("code", method.toUpperCase() + " " + path), " " + operation.summary);
  details.append(summary);
  const request = operation.requestBody && operation.requestBody.content["application/json"].schema.$ref;
  const content = operation.responses["200"].content;
  const response = content["application/json"] && content["application/json"].schema.$ref;
  if (request) details.append(...describe("Request", request, schemas));
  if (response) details.append(...describe("Response", response, schemas));
  details.append(element("h4", "Errors"));
  for (const [status, error] of Object.entries(operation.responses)) {
    if (status !== "200") details.append(element("p", status + ": " + error.description, "type"));
  }
  return details;
}

fetch("/openapi.json").then((response) => response.json()).then((description) => {
  const main = document.getElementById("endpoints");
  for (const [path, methods] of Object.entries(description.paths)) {
    for (const [method, operation] of Object.entries(methods)) main.append(section(path, method, operation, description.components.schemas));
  }
}).catch((error) => document.getElementById("endpoints").append(element("p", "The description could not be loaded: " + error)));
